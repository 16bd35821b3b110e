"""Which GPUs of this machine a process sees: each process gets its own."""

from collections.abc import Sequence

from nebula_serve.errors import GpuMissingError

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


class GpuShares:
    """Hands out GPUs from the first to the last.

    Args:
        gpus: as CUDA_VISIBLE_DEVICES names them. Empty on a machine without any, where nothing is handed out.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        self._gpus = tuple(gpus)
        self._num_taken = 0

    def take(self, process: str, count: int) -> dict[str, str]:
        """The variable that shows the process the next `count` GPUs and no other; nothing without GPUs or for none.

        Raises:
            GpuMissingError: fewer are left.
        """
        if not count or not self._gpus:
            return {}
        first, self._num_taken = self._num_taken, self._num_taken + count
        if self._num_taken > len(self._gpus):
            raise GpuMissingError(
                f"{process} needs {count} GPU{'s' if count > 1 else ''} of its own, but {first} of "
                f"{len(self._gpus)} are taken; choose fewer workers or tensor_parallel"
            )
        return {GPU_VARIABLE: ",".join(self._gpus[first : self._num_taken])}


NO_GPUS = GpuShares(())
