"""Settings of the vLLM engine: what may be given, and what the worker keeps to itself."""

import pytest
from pydantic import ValidationError

from pic_worker.settings import WorkerSettings
from pic_worker.vllm_settings import RESERVED_ENGINE_ARGS, VllmSettings


def test_engine_arguments_pass_as_they_are_and_survive_a_file() -> None:
    given = {"swap_space": 4, "hf_overrides": {"rope_theta": 1e6}, "disable_cascade_attn": True}
    settings = WorkerSettings.model_validate({"engine": "vllm", "vllm": {"engine_args": given}})
    assert settings.vllm.engine_args == given
    assert WorkerSettings.model_validate_json(settings.model_dump_json()) == settings


@pytest.mark.parametrize("name", sorted(RESERVED_ENGINE_ARGS))
def test_an_argument_that_the_worker_sets_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} is set by the worker"):
        VllmSettings.model_validate({"engine_args": {name: 1}})


def test_the_refusal_names_the_setting_to_use() -> None:
    with pytest.raises(ValidationError, match="use context_tokens"):
        VllmSettings.model_validate({"engine_args": {"max_model_len": 4096}})


def test_every_setting_that_a_refusal_names_exists() -> None:
    for setting in filter(None, RESERVED_ENGINE_ARGS.values()):
        section, _, key = setting.rpartition(".")
        model = VllmSettings if section == "vllm" else WorkerSettings
        assert key in model.model_fields, setting


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"tensor_parallel": 0},
        {"dtype": "fp8"},
        {"gpu_memory_utilization": 0},
        {"gpu_memory_utilization": 1.1},
        {"kv_cache_bytes": 1000},
        {"page_tokens": 0},
        {"max_recomputed_tokens_per_step": 0},
        {"seed": -1},
        {"cpu_threads": 0},
        {"cpu_cores": "all"},
        {"cpu_cores": ""},
        {"transfer_port": 65536},
        {"transfer_host": ""},
        {"engine_args": {"--swap-space": 4}},
        {"engine_args": {"Swap": 4}},
        {"engine_args": ["swap_space"]},
        {"engine_args": {"swap_space": {1, 2}}},
    ],
    ids=repr,
)
def test_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        VllmSettings.model_validate(wrong)


@pytest.mark.parametrize("cores", ["nobind", "auto", "0", "0-3", "0-3|4-7", "0,2|1,3"])
def test_cores_are_given_as_vllm_takes_them(cores: str) -> None:
    assert VllmSettings(cpu_cores=cores).cpu_cores == cores


def test_a_page_of_the_store_must_divide_a_block() -> None:
    with pytest.raises(ValidationError, match=r"vllm\.page_tokens \(16\) must divide block_size_tokens \(24\)"):
        WorkerSettings(engine="vllm", block_size_tokens=24)
    assert WorkerSettings(engine="vllm", block_size_tokens=48).block_size_tokens == 48
    # The simulated engine has no pages.
    assert WorkerSettings(engine="sim", block_size_tokens=24).block_size_tokens == 24
