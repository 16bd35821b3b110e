"""Short names of workers, as people read and type them."""

from nebula_protocol.ids import WorkerId, WorkerWithDpRank

_HEX_DIGITS = 6


def short_id(worker_id: WorkerId) -> str:
    """The last six hexadecimal digits: enough to tell the workers of one deployment apart."""
    return f"{worker_id:0{_HEX_DIGITS}x}"[-_HEX_DIGITS:]


def matches(worker_id: WorkerId, text: str) -> bool:
    """Whether `text` means this worker: its id, its last hexadecimal digits, or its name `component/digits`."""
    digits = text.rpartition("/")[2].partition(":")[0].lower().removeprefix("0x")
    return digits == str(worker_id) or (digits != "" and f"{worker_id:016x}".endswith(digits))


class WorkerNames:
    """Learns from events which component a worker belongs to; a decision names its workers by id alone."""

    def __init__(self) -> None:
        self._components: dict[WorkerId, str] = {}

    def learn(self, worker_id: WorkerId, component: str) -> None:
        self._components[worker_id] = component

    def name(self, worker: WorkerWithDpRank) -> str:
        """`prefill/3f2a91`, and `:1` behind it for the scheduler of rank 1."""
        component = self._components.get(worker.worker_id)
        rank = f":{worker.dp_rank}" if worker.dp_rank else ""
        return f"{component}/{short_id(worker.worker_id)}{rank}" if component else f"{short_id(worker.worker_id)}{rank}"
