"""What a machine can compute with, which engine follows, and which GPUs each process gets."""

import pytest

from nebula_serve.engine_choice import EngineChoice, choose_engine
from nebula_serve.errors import EngineError, GpuMissingError
from nebula_serve.gpu_shares import GpuShares
from nebula_serve.graph import Graph
from nebula_serve.machine import Machine, VllmBuild

SIM_ONLY = Graph(name="g", description="", services=())
BOTH = Graph(name="g", description="", services=(), engines=("vllm", "sim"))
REAL_ONLY = Graph(name="g", description="", services=(), engines=("vllm",))
CPU = Machine(num_gpus=0, vllm=VllmBuild.FOR_CPU)
GPU = Machine(num_gpus=4, vllm=VllmBuild.FOR_GPU)
NO_VLLM = Machine(num_gpus=4, vllm=VllmBuild.MISSING)
NO_GPU = Machine(num_gpus=0, vllm=VllmBuild.FOR_GPU)


@pytest.mark.parametrize(("machine", "part"), [(CPU, "CPU"), (GPU, "GPU")])
def test_where_vllm_runs_it_is_taken(machine: Machine, part: str) -> None:
    assert choose_engine("auto", BOTH, machine) == EngineChoice("vllm", f"it runs on this machine's {part}")


def test_a_vllm_for_cpus_computes_there_beside_a_gpu_too() -> None:
    choice = choose_engine("auto", BOTH, Machine(num_gpus=1, vllm=VllmBuild.FOR_CPU))
    assert choice == EngineChoice("vllm", "it runs on this machine's CPU")


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (NO_VLLM, "vLLM is not installed in this environment"),
        (NO_GPU, "the vLLM of this environment needs a GPU, and none is here"),
    ],
)
def test_where_it_does_not_the_simulated_one_is_taken_and_says_why(machine: Machine, reason: str) -> None:
    assert choose_engine("auto", BOTH, machine) == EngineChoice("sim", reason)
    with pytest.raises(EngineError, match=f"engine vllm: {reason}"):
        choose_engine("vllm", BOTH, machine)
    with pytest.raises(EngineError, match=f"has only the engine vllm: {reason}"):
        choose_engine("auto", REAL_ONLY, machine)


def test_what_was_asked_for_is_taken() -> None:
    assert choose_engine("sim", BOTH, GPU).engine == "sim"
    assert choose_engine("vllm", BOTH, CPU).engine == "vllm"


def test_an_engine_that_the_graph_does_not_have_is_refused() -> None:
    with pytest.raises(EngineError, match="no engine vllm; valid: sim"):
        choose_engine("vllm", SIM_ONLY, GPU)


def test_a_graph_without_vllm_simulates_anywhere() -> None:
    assert choose_engine("auto", SIM_ONLY, GPU).engine == "sim"


def test_all_gpus_are_seen_unless_the_environment_shows_some() -> None:
    assert GPU.visible_gpus({}) == ("0", "1", "2", "3")
    assert GPU.visible_gpus({"CUDA_VISIBLE_DEVICES": "2, GPU-ab"}) == ("2", "GPU-ab")
    assert GPU.visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == ()


@pytest.mark.parametrize("machine", [CPU, NO_VLLM, NO_GPU, Machine(num_gpus=1, vllm=VllmBuild.FOR_CPU)])
def test_an_engine_that_uses_no_gpu_is_handed_none(machine: Machine) -> None:
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_each_process_gets_the_next_gpus() -> None:
    shares = GpuShares(GPU.visible_gpus({}))
    taken = [shares.take("a", 1), shares.take("router", 0), shares.take("b", 2), shares.take("c", 1)]
    shown = [one.get("CUDA_VISIBLE_DEVICES") for one in taken]
    assert shown == ["0", None, "1,2", "3"]


def test_more_processes_than_gpus_are_refused_with_the_numbers() -> None:
    shares = GpuShares(("0", "1", "2"))
    shares.take("a", 2)
    with pytest.raises(GpuMissingError, match="b needs 2 GPUs of its own, but 2 of 3 are taken"):
        shares.take("b", 2)


def test_a_gpu_that_is_named_several_times_is_shared() -> None:
    shares = GpuShares(GPU.visible_gpus({"CUDA_VISIBLE_DEVICES": "0,0,0"}))
    assert {shares.take(name, 1)["CUDA_VISIBLE_DEVICES"] for name in "abc"} == {"0"}


def test_this_machine_is_described() -> None:
    machine = Machine.here()
    assert (machine.why_no_vllm is None) or machine.vllm is not VllmBuild.FOR_CPU
