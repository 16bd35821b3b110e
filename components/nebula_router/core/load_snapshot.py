"""How busy each worker is at one moment: the load's answer and the planner's question."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nebula_protocol.ids import WorkerWithDpRank

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """Columns per worker, shape [W]; times are seconds from the moment of the snapshot."""

    workers: tuple[WorkerWithDpRank, ...]
    free_in_s: FloatArray
    """Until the engine could start on a request that is runnable at once: the rest of the running step, and the
    marginal time of those in front. Step floors are not in it: they depend on how many tokens the new request
    brings."""
    queued_tokens: FloatArray
    """Tokens in front, running step excluded, for counting the steps."""
    co_batched: FloatArray
    """Requests that would share their step with a new one, and so wait for its work too."""
    turn_in_s: FloatArray
    """Until that step begins. A request that is not runnable by then has missed it."""
    drained_in_s: FloatArray
    """Until those in front are served, floors of their steps included."""
    late_from_s: FloatArray
    """Until the first outstanding request becomes runnable that still waits for segments; infinite without any. A new
    request that becomes runnable after that has those in front of it as well."""
    num_late: FloatArray
    """How many such requests there are."""
    late_free_in_s: FloatArray
    """`drained_in_s` with those in front too."""
    recent_work_s: FloatArray
    """Engine seconds dispatched lately (decaying), for spreading where nothing else tells workers apart."""
    cost_factor: FloatArray
    """Measured step time over the card's fit."""
    link_out_busy_s: FloatArray
    link_in_busy_s: FloatArray
    work_price: float
    """Seconds that one second of engine time, spent now, costs the requests that follow; see `LoadTracker`."""
