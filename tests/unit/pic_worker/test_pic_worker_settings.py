"""The worker's settings as a file brings them."""

import pytest
from pydantic import ValidationError

from nebula_protocol.fusion import parse_fusion
from pic_worker.adapters.sim.costs import make_costs
from pic_worker.errors import StartError
from pic_worker.settings import SimSettings, WorkerSettings


def test_the_settings_survive_the_way_through_a_file() -> None:
    settings = WorkerSettings(role="decode", component="decode", model_path="/models/m", prefix_ratio=0.5)
    assert WorkerSettings.model_validate_json(settings.model_dump_json()) == settings


def test_every_setting_has_a_default() -> None:
    assert WorkerSettings() == WorkerSettings.model_validate_json("{}")


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": "red"},
        {"sim": {"colour": "red"}},
        {"link": {"colour": "red"}},
        {"role": "both"},
        {"engine": "abacus"},
        {"block_size_tokens": 0},
        {"device_capacity_tokens": 100},
        {"store_capacity_tokens": -1},
        {"prefix_ratio": 1.1},
        {"max_step_tokens": 0},
        {"max_running": 0},
        {"fusion": "legolink:-1"},
        {"fusion": "cacheblend:1.5"},
        {"fusion": "lego"},
        {"fusion": 16},
        {"fusion": None},
        {"prompt_hold_s": 0},
        {"metrics_port": 65535},
        {"log_level": "loud"},
        {"link": {"bytes_per_s": 0}},
        {"link": {"floor_s": -0.1}},
        {"sim": {"time_scale": 0}},
        {"sim": {"time_factor": 0}},
        {"sim": {"decode_token_s": 0}},
        {"sim": {"answer": ""}},
        {"cut": {"chunk_min_tokens": 100, "chunk_mean_tokens": 100}},
    ],
    ids=repr,
)
def test_unknown_keys_and_impossible_values_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings.model_validate(wrong)


@pytest.mark.parametrize("text", ["legolink:32", "cacheblend:0.3", "none", "full"])
def test_a_fusion_is_set_and_saved_as_the_text_that_requests_use(text: str) -> None:
    settings = WorkerSettings.model_validate({"fusion": text})
    assert settings.fusion == parse_fusion(text)
    assert settings.model_dump()["fusion"] == text
    assert WorkerSettings.model_validate_json(settings.model_dump_json()) == settings


def test_an_unknown_fusion_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="'blend' is no fusion; the forms are legolink:16"):
        WorkerSettings.model_validate({"fusion": "blend"})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        WorkerSettings().prefix_ratio = 0.1


def test_an_engine_for_which_there_is_no_table_cannot_start() -> None:
    with pytest.raises(StartError, match="no prefill-time table for Qwen3-14B/bf16/abacus"):
        make_costs(WorkerSettings(sim=SimSettings(system="abacus")))


def test_the_time_scale_stretches_every_cost_alike() -> None:
    plain = make_costs(WorkerSettings(sim=SimSettings(time_scale=1.0)))
    slow = make_costs(WorkerSettings(sim=SimSettings(time_scale=10.0)))
    times_s = [
        (
            costs.step.step_s(1000, 500_000),
            costs.load.block_s_per_token,
            costs.load.segment_s_per_token,
            costs.link.transfer_s(0),
            costs.link.transfer_s(1e9),
            costs.decode_token_s,
            costs.fit.step_s,
            costs.fit.per_token_s,
            costs.fit.per_pair_s,
        )
        for costs in (plain, slow)
    ]
    assert times_s[1] == pytest.approx([10 * time_s for time_s in times_s[0]])


def test_the_fit_that_the_router_is_told_is_near_the_engines_own_times() -> None:
    costs = make_costs(WorkerSettings())
    for num_tokens in (1024, 4096, 8192):
        pairs = num_tokens * num_tokens / 2
        told_s = costs.fit.step_s + num_tokens * costs.fit.per_token_s + pairs * costs.fit.per_pair_s
        # 6 to 21 % for steps of 512 tokens and more.
        assert told_s == pytest.approx(costs.step.step_s(num_tokens, pairs), rel=0.21)
