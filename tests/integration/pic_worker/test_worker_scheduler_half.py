"""The connector's half in vLLM's own scheduler, case by case, over symbolic ranks."""

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.passages import Prompt, passage
from support.segment_plans import segments_of
from support.symbolic_engine import BLOCK_TOKENS, MAX_RECOMPUTED_TOKENS, SymbolicEngine

from nebula_protocol.events import HostBlocksStored, SegmentStored
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.ids import DomainId, RequestId
from pic_worker.adapters.vllm.engine_wire import ORDER_KEY, PrefillFacts, PrefillOrder
from pic_worker.adapters.vllm.orders import StepReport

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

A, B = passage(1, 20), passage(2, 17)
SYSTEM, QUESTION = passage(3, 5), passage(4, 3)
AB = Prompt.of(SYSTEM, A, B, QUESTION, gaps=(0, 3))
BA = Prompt.of(SYSTEM, B, A, QUESTION, gaps=(0, 3))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-model")


@pytest.fixture(params=[False, True], ids=["in_step", "running_ahead"])
def engine(request: pytest.FixtureRequest, model_folder: Path) -> SymbolicEngine:
    return SymbolicEngine(model_folder, runs_ahead=request.param)


def ask(
    engine: SymbolicEngine,
    prompt: Prompt,
    *,
    fusion: Fusion = FULL_FUSION,
    salt: str = "",
    spans: Sequence[tuple[int, int]] | None = None,
    num_answer_tokens: int = 1,
    may_reuse: bool = True,
) -> str:
    order = PrefillOrder(
        request_id=RequestId(f"asked-{len(engine.facts)}"),
        domain_id=DomainId("d"),
        lineage=salt,
        segments=segments_of(prompt.tokens, prompt.spans if spans is None else spans),
        fusion=fusion,
        may_reuse=may_reuse,
    )
    return engine.add(prompt.tokens, order, salt=salt, num_answer_tokens=num_answer_tokens)


def run(engine: SymbolicEngine, prompt: Prompt, **options: object) -> PrefillFacts:
    ask(engine, prompt, **options)  # type: ignore[arg-type]
    engine.drain()
    engine.assert_nothing_in_use()
    return engine.facts[-1]


def loaded(facts: PrefillFacts) -> list[int]:
    return [fact.loaded_tokens for fact in facts.segments]


def test_unknown_segments_are_computed_and_kept(engine: SymbolicEngine) -> None:
    facts = run(engine, AB)
    assert [(fact.was_absent, fact.is_stored) for fact in facts.segments] == [(True, True), (True, True)]
    assert (facts.computed_tokens, facts.is_whole) == (45, True)
    # 45 tokens in two steps of at most 32.
    assert (facts.num_steps, facts.step_tokens) == (2, 45)
    # The first behind nothing, the second behind 32: 32 * 16 + 13 * (32 + 6.5).
    assert facts.attention_pairs == 512 + 500.5


def test_known_segments_are_loaded_wherever_they_stand(engine: SymbolicEngine) -> None:
    run(engine, AB)
    facts = run(engine, BA, salt="tenant", fusion=legolink(2))
    assert loaded(facts) == [17, 20]
    assert [fact.recomputed_tokens for fact in facts.segments] == [2, 2]
    # The gap of 5, twice 2 leading tokens, and 3 by the engine itself, all in one step.
    assert (facts.computed_tokens, facts.num_steps) == (12, 1)


def test_a_long_load_goes_over_steps_while_the_engine_serves_others(engine: SymbolicEngine) -> None:
    run(engine, AB)
    ask(engine, BA, salt="long")
    short = engine.add(passage(9, 4), None, num_answer_tokens=1)
    engine.step()
    assert engine.half._loads.num_over_steps == 1
    engine.step()
    engine.step()
    assert short not in engine.scheduler.requests
    engine.drain()
    # 42 claimed tokens at 12 a step, and one step for the rest.
    assert engine.facts[-1].num_steps == 5
    engine.assert_nothing_in_use()


def test_a_load_waits_where_others_use_up_the_steps(engine: SymbolicEngine) -> None:
    run(engine, AB)
    ask(engine, BA, salt="first")
    ask(engine, BA, salt="second")
    engine.step()
    assert engine.half._loads.num_over_steps == 1
    engine.drain()
    assert [loaded(facts) for facts in engine.facts[1:]] == [[17, 20], [17, 20]]


def test_short_loads_need_not_wait_for_a_long_one(engine: SymbolicEngine) -> None:
    run(engine, AB)
    long = ask(engine, BA, salt="first")
    engine.step()
    short = ask(engine, BA, salt="second", fusion=NO_FUSION)
    assert len(SYSTEM) <= MAX_RECOMPUTED_TOKENS // 2
    engine.step()
    engine.step()
    engine.step()
    assert (short in engine.scheduler.requests, long in engine.scheduler.requests) == (False, True)
    engine.drain()


@pytest.mark.parametrize("num_steps", range(6))
def test_an_abort_at_any_moment_of_a_long_load(engine: SymbolicEngine, num_steps: int) -> None:
    run(engine, AB)
    name = ask(engine, BA, salt="broken off", num_answer_tokens=9)
    for _ in range(num_steps):
        engine.step()
    engine.abort(name)
    engine.drain()
    engine.assert_nothing_in_use()
    assert len(engine.facts) == 2
    assert loaded(run(engine, BA, salt="later")) == [17, 20]


def test_a_prefix_that_is_computed_in_the_same_step_is_waited_for(engine: SymbolicEngine) -> None:
    """The connector's pass goes first, and would read blocks that are still empty: the ranks would find that."""
    run(engine, Prompt.of(passage(8, 5), A, QUESTION, gaps=(0, 2)))
    shared = passage(6, 2 * BLOCK_TOKENS)
    prompt = Prompt.of(shared, QUESTION, A, QUESTION, gaps=(0, 1, 3))
    # One to compute the prefix, one that finds it computed in this very step, at once beside it.
    engine.add([*shared, 9], None)
    ask(engine, prompt, fusion=NO_FUSION)
    engine.drain()
    assert (engine.facts[-1].device_prefix_tokens, loaded(engine.facts[-1])) == (2 * BLOCK_TOKENS, [20])


def test_prefix_blocks_that_leave_the_device_tier_come_back(engine: SymbolicEngine) -> None:
    prompt = Prompt(passage(20, 9 * BLOCK_TOKENS), [])
    run(engine, prompt, salt="exact/")
    run(engine, Prompt(passage(21, 10 * BLOCK_TOKENS), []), salt="exact/")
    facts = run(engine, prompt, salt="exact/")
    assert facts.host_prefix_tokens > 0
    # The block with the last token is left to the engine.
    assert facts.device_prefix_tokens + facts.host_prefix_tokens == 8 * BLOCK_TOKENS
    assert any(isinstance(event, HostBlocksStored) for news in engine.bulletin.news for event in news.events)


def test_a_block_taken_from_the_prefix_it_held_is_computed_again(engine: SymbolicEngine) -> None:
    """The device tier is so full that a request gets, as new, blocks of its own evicted prefix."""
    first = Prompt(passage(22, 11 * BLOCK_TOKENS), [])
    run(engine, first, salt="exact/")
    for number in range(3):
        run(engine, Prompt([*first.tokens[: 4 * BLOCK_TOKENS], *passage(30 + number, 40)], []), salt="exact/")
    facts = run(engine, first, salt="exact/")
    assert facts.is_whole


def test_kv_with_injected_tokens_is_not_kept_as_computed(engine: SymbolicEngine) -> None:
    """Its prefix holds the segment, but as it was injected: its copy would drift with each time."""
    run(engine, AB)
    run(engine, BA, fusion=NO_FUSION)
    engine.half.catalogue.clear()
    facts = run(engine, Prompt([*BA.tokens, *passage(7, 9)], BA.spans), fusion=NO_FUSION)
    assert facts.device_prefix_tokens == 40
    assert [(fact.prefix_tokens, fact.is_stored) for fact in facts.segments] == [(17, False), (18, False)]


def test_tokens_that_differ_from_the_stored_ones_are_computed(engine: SymbolicEngine) -> None:
    run(engine, AB)
    other = [*SYSTEM, *passage(40, 20), *QUESTION]
    (wrong,) = segments_of(AB.tokens, [(5, 25)])
    order = PrefillOrder(
        request_id=RequestId("liar"), domain_id=DomainId("d"), lineage="", segments=(wrong,), fusion=NO_FUSION
    )
    engine.add(other, order)
    engine.drain()
    (fact,) = engine.facts[-1].segments
    assert (fact.tokens_differed, fact.loaded_tokens, fact.is_stored) == (True, 0, True)


def test_domains_share_nothing(engine: SymbolicEngine) -> None:
    run(engine, AB)
    order = PrefillOrder(
        request_id=RequestId("other"),
        domain_id=DomainId("another"),
        lineage="other",
        segments=segments_of(BA.tokens, BA.spans),
        fusion=NO_FUSION,
    )
    engine.add(BA.tokens, order, salt="other")
    engine.drain()
    assert loaded(engine.facts[-1]) == [0, 0]


def test_a_request_that_may_not_reuse_keeps_what_it_computes(engine: SymbolicEngine) -> None:
    run(engine, Prompt.of(SYSTEM, A, QUESTION, gaps=(0, 2)))
    facts = run(engine, BA, salt="new", may_reuse=False)
    assert loaded(facts) == [0, 0]
    assert [(fact.was_absent, fact.is_stored) for fact in facts.segments] == [(False, True), (False, True)]


def test_a_segment_at_the_beginning_is_left_to_the_prefix_cache(engine: SymbolicEngine) -> None:
    facts = run(engine, Prompt.of(A, B, QUESTION, gaps=(2,)))
    assert [fact.is_stored for fact in facts.segments] == [False, True]


def test_an_order_that_cannot_be_read_does_no_harm(engine: SymbolicEngine) -> None:
    name = engine.add(AB.tokens, None)
    engine.scheduler.requests[name].kv_transfer_params = {ORDER_KEY: {"request_id": 7}}
    engine.half._requests.clear()
    engine.drain()
    assert engine.facts == []
    engine.assert_nothing_in_use()


def test_segments_that_do_not_fit_the_prompt_are_told_as_computed(engine: SymbolicEngine) -> None:
    facts = run(engine, Prompt(AB.tokens[:30], [(5, 25)]), spans=[(5, 25)])
    order = PrefillOrder(
        request_id=RequestId("misfit"),
        domain_id=DomainId("d"),
        lineage="x",
        segments=segments_of(AB.tokens, [(5, 25), (20, 42)]),
        fusion=NO_FUSION,
    )
    engine.add(AB.tokens, order, salt="x")
    engine.drain()
    assert facts.segments[0].is_stored
    assert [fact.start for fact in engine.facts[-1].segments] == [5, 20]
    assert loaded(engine.facts[-1]) == [20, 0]


def test_a_prompt_that_is_pulled_from_elsewhere_claims_nothing(engine: SymbolicEngine) -> None:
    run(engine, AB)
    name = ask(engine, BA, salt="pulled", fusion=NO_FUSION)
    engine.half._requests.clear()
    params = engine.scheduler.requests[name].kv_transfer_params
    assert params is not None
    params["do_remote_prefill"] = True
    assert engine.half.match(engine.scheduler.requests[name], 0) == (0, False)
    engine.abort(name)
    engine.drain()


def test_a_save_that_not_all_ranks_have_done_never_counts(engine: SymbolicEngine) -> None:
    execute = engine.ranks.execute
    engine.ranks.execute = lambda *step: (StepReport(), execute(*step)[1])  # type: ignore[method-assign]
    facts = run(engine, AB)
    assert [fact.is_stored for fact in facts.segments] == [False, False]
    assert not any(isinstance(event, SegmentStored) for news in engine.bulletin.news for event in news.events)


def test_where_the_model_cannot_be_probed_leading_tokens_are_computed_again(engine: SymbolicEngine) -> None:
    run(engine, AB)
    engine.half._settings = type(engine.half._settings)(
        news_url="", control_url="", store_capacity_tokens=0, prefix_ratio=0.5, selects=False
    )
    facts = run(engine, BA, salt="tenant", fusion=cacheblend(0.1))
    assert [fact.recomputed_tokens for fact in facts.segments] == [16, 16]


def test_requests_without_an_order_are_told_nothing_of(engine: SymbolicEngine) -> None:
    engine.add(AB.tokens, None)
    engine.drain()
    assert engine.facts == []


def test_an_abort_in_the_queue_is_told_at_once(engine: SymbolicEngine) -> None:
    name = ask(engine, AB)
    engine.abort(name)
    (facts,) = engine.facts
    assert (facts.is_whole, facts.num_steps, facts.computed_tokens) == (False, 0, 0)
    engine.drain()
