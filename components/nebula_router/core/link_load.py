"""How long each worker's link is taken by transfers that the router has planned."""

import numpy as np
import numpy.typing as npt


class LinkLoad:
    """Per worker row, when its outgoing and its incoming direction should be idle again.

    Open loop: a planned transfer adds its bytes over the link's bandwidth to the backlog of both ends, at once even
    where its bytes have yet to be computed. Nothing reports the end of a transfer by itself, so nothing corrects this;
    it is there to spread transfers over sources and to see a link that is the bottleneck.
    """

    def __init__(self) -> None:
        self._out_until_s = np.zeros(0)
        self._in_until_s = np.zeros(0)

    def resize(self, num_rows: int) -> None:
        """Makes room; rows that exist stay."""
        missing = np.zeros(num_rows - len(self._out_until_s))
        self._out_until_s = np.concatenate([self._out_until_s, missing])
        self._in_until_s = np.concatenate([self._in_until_s, missing])

    def clear(self, row: int) -> None:
        self._out_until_s[row] = 0.0
        self._in_until_s[row] = 0.0

    def record_transfer(self, *, source: int, target: int, out_s: float, in_s: float, now_s: float) -> None:
        """Adds to the backlog of both ends."""
        self._out_until_s[source] = max(self._out_until_s[source], now_s) + out_s
        self._in_until_s[target] = max(self._in_until_s[target], now_s) + in_s

    def out_busy_s(self, rows: npt.NDArray[np.intp], now_s: float) -> npt.NDArray[np.float64]:
        """Seconds from now, shape of `rows`."""
        return np.maximum(self._out_until_s[rows] - now_s, 0.0)

    def in_busy_s(self, rows: npt.NDArray[np.intp], now_s: float) -> npt.NDArray[np.float64]:
        """Seconds from now, shape of `rows`."""
        return np.maximum(self._in_until_s[rows] - now_s, 0.0)
