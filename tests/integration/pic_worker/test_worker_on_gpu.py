"""What only a GPU can show: layouts of its attention backends, its worker class, pinned copies, CUDA graphs.

Run by hand on a machine with one: `pytest -m gpu tests/integration/pic_worker/test_worker_on_gpu.py`.
"""

from collections.abc import Iterator

import pytest
from support.connected_engine import ConnectedEngine, Kv, assert_same_kv, connected_engine
from support.passages import Prompt, passage
from support.reuse import learn, loaded

from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink

pytestmark = [pytest.mark.gpu, pytest.mark.integration, pytest.mark.timeout(900)]

A, B, C = passage(1, 60), passage(2, 75), passage(3, 90)
SYSTEM, QUESTION = passage(4, 21), passage(5, 26)


@pytest.fixture(scope="module", params=[True, False], ids=["eager", "compiled"])
def started_gpu_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectedEngine]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    with connected_engine(
        tmp_path_factory.mktemp("tiny-model"),
        worker_cls="pic_worker.adapters.vllm.worker_class.PicGpuWorker",
        enforce_eager=request.param,
    ) as engine:
        yield engine


@pytest.fixture
def engine(started_gpu_engine: ConnectedEngine) -> Iterator[ConnectedEngine]:
    started_gpu_engine.reset()
    yield started_gpu_engine
    started_gpu_engine.finish()
    started_gpu_engine.assert_nothing_in_use()


def part_of(kv: Kv | None, start: int, end: int) -> Kv:
    assert kv is not None
    return [[(keys[start:end], values[start:end]) for keys, values in layers] for layers in kv]


def reuse_all() -> Prompt:
    return Prompt.of(SYSTEM, C, A, B, QUESTION, gaps=(0, 4))


def test_on_a_gpu_recomputing_all_gives_the_tokens_of_full_prefill(engine: ConnectedEngine) -> None:
    learn(engine, A, B, C)
    prompt = reuse_all()
    reference = engine.run(prompt.tokens, salt="reference", num_answer_tokens=8)
    ran = engine.run(prompt.tokens, prompt.spans, salt="reuse", fusion=FULL_FUSION, num_answer_tokens=8)
    assert loaded(ran) == [len(C), len(A), len(B)]
    assert ran.answer.token_ids == reference.answer.token_ids


def test_on_a_gpu_a_segment_at_its_old_position_comes_back_bit_for_bit(engine: ConnectedEngine) -> None:
    donor = Prompt.of(passage(99, 13), A, passage(98, 3), gaps=(0, 2))
    lent = engine.run_for_kv(donor.tokens, donor.spans, salt="donor")
    other = Prompt.of(passage(97, 13), A, QUESTION, gaps=(0, 2))
    ran = engine.run_for_kv(other.tokens, other.spans, salt="reuse", fusion=NO_FUSION)
    assert loaded(ran) == [len(A)]
    assert_same_kv(part_of(ran.kv, 13, 13 + len(A)), part_of(lent.kv, 13, 13 + len(A)))


@pytest.mark.parametrize("fusion", [legolink(16), cacheblend(0.15)], ids=str)
def test_on_a_gpu_fusion_reuses_and_computes_again_what_it_says(engine: ConnectedEngine, fusion: Fusion) -> None:
    learn(engine, A, B, C)
    prompt = reuse_all()
    ran = engine.run(prompt.tokens, prompt.spans, salt="reuse", fusion=fusion)
    assert loaded(ran) == [len(C), len(A), len(B)]
    assert 0 < sum(fact.recomputed_tokens for fact in ran.told.segments) < len(A) + len(B) + len(C)


def test_on_a_gpu_an_exact_request_behind_reuse_equals_one_before_it(engine: ConnectedEngine) -> None:
    prompt = reuse_all()
    before = engine.run_for_kv(prompt.tokens, salt="exact/before")
    learn(engine, A, B, C)
    engine.run(prompt.tokens, prompt.spans, salt="reuse", fusion=NO_FUSION)
    behind = engine.run_for_kv(prompt.tokens, salt="exact/behind")
    assert_same_kv(behind.kv, before.kv)
    assert behind.answer == before.answer
