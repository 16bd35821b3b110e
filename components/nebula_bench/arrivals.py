"""When the requests of a replay arrive."""

import numpy as np
import numpy.typing as npt

_RAW_BITS_DROPPED = np.uint64(11)
_UNIT = 2.0**-53


def poisson_arrivals_s(num_requests: int, rate_per_s: float, seed: int) -> npt.NDArray[np.float64]:
    """Arrival times of a Poisson process in seconds from its start, shape [num_requests], ascending.

    The gaps are drawn from the raw bits of PCG64 by inversion: NumPy promises the same bits for a seed in every
    version, but not the same exponential variates.

    Raises:
        ValueError: the rate is not positive.
    """
    if not rate_per_s > 0:
        raise ValueError(f"the rate must be positive, not {rate_per_s}")
    raw = np.random.PCG64(seed).random_raw(num_requests)
    uniform = (raw >> _RAW_BITS_DROPPED) * _UNIT
    return np.cumsum(-np.log1p(-uniform) / rate_per_s)
