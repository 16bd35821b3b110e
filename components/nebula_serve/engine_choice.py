"""Which engine the workers compute with, and why that one."""

from dataclasses import dataclass

from nebula_serve.errors import EngineError
from nebula_serve.graph import Graph
from nebula_serve.machine import Machine, VllmBuild

EngineName = str


@dataclass(frozen=True, slots=True)
class EngineChoice:
    engine: EngineName
    """One of the graph's."""
    reason: str
    """Half a sentence for the log."""


def choose_engine(wanted: EngineName, graph: Graph, machine: Machine) -> EngineChoice:
    """`auto` takes the first engine of the graph that runs here.

    Raises:
        EngineError: the engine asked for does not run in this graph or on this machine, or none does.
    """
    if wanted != "auto":
        if wanted not in graph.engines:
            raise EngineError(f"graph {graph.name} has no engine {wanted}; valid: {', '.join(graph.engines)}")
        if wanted == "vllm" and machine.why_no_vllm is not None:
            raise EngineError(f"engine vllm: {machine.why_no_vllm}; docs/serve.md tells how to install it")
        return EngineChoice(wanted, "asked for")
    if "vllm" not in graph.engines:
        return EngineChoice("sim", "the graph has no other")
    if machine.why_no_vllm is None:
        return EngineChoice(
            "vllm", f"it runs on this machine's {'GPU' if machine.vllm is VllmBuild.FOR_GPU else 'CPU'}"
        )
    if "sim" not in graph.engines:
        raise EngineError(f"graph {graph.name} has only the engine vllm: {machine.why_no_vllm}")
    return EngineChoice("sim", machine.why_no_vllm)
