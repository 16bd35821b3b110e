"""Laws of the connector's half in vLLM's own scheduler, over ranks that find every read of what is not there.

The ranks check each token's context when it is computed, each copied token when it is copied, and that requests of an
exact lineage see nothing but the KV of a full prefill.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="vLLM is not installed")

from support.segment_plans import segments_of
from support.symbolic_engine import MAX_TOKENS, SymbolicEngine

from nebula_protocol.events import HostBlocksRemoved, HostBlocksStored, SegmentRemoved, SegmentStored, StoreCleared
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.ids import DomainId, RequestId
from pic_worker.adapters.vllm.engine_wire import ClearControl, PrefillKind, PrefillOrder, SplitControl

pytestmark = [pytest.mark.integration]

FUSIONS = (FULL_FUSION, NO_FUSION, legolink(2), legolink(30), cacheblend(0.3))
PASSAGES = tuple(
    [random.Random(seed).randrange(10, 500) for _ in range(num_tokens)]
    for seed, num_tokens in enumerate((3, 8, 8, 13, 16, 21, 30))
)


@dataclass(frozen=True)
class Ask:
    """A request, of passages by number; those that are negative are no segments."""

    passages: tuple[int, ...]
    fusion: Fusion
    salt: str
    has_order: bool
    is_alone: bool
    num_answer_tokens: int

    @property
    def tokens(self) -> list[int]:
        return [token for number in self.passages for token in PASSAGES[abs(number) - 1]][: MAX_TOKENS - 6]

    @property
    def spans(self) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        end = 0
        for number in self.passages:
            start, end = end, end + len(PASSAGES[abs(number) - 1])
            if number > 0 and end <= len(self.tokens):
                spans.append((start, end))
        return spans


numbers = st.integers(1, len(PASSAGES)).flatmap(lambda number: st.sampled_from([number, number, number, -number]))
prompts = st.builds(
    Ask,
    passages=st.lists(numbers, min_size=1, max_size=7).map(tuple),
    fusion=st.sampled_from(FUSIONS),
    salt=st.sampled_from(["", "", "exact/"]),
    has_order=st.sampled_from([True, True, True, False]),
    is_alone=st.just(False),
    num_answer_tokens=st.integers(1, 6),
)
alone = st.builds(
    Ask,
    passages=st.integers(1, len(PASSAGES)).map(lambda number: (number,)),
    fusion=st.just(NO_FUSION),
    salt=st.just("alone/"),
    has_order=st.just(True),
    is_alone=st.just(True),
    num_answer_tokens=st.just(1),
)
steps = st.integers(1, 4)
controls = st.one_of(st.floats(0, 1).map(lambda ratio: SplitControl(prefix_ratio=ratio)), st.just(ClearControl()))
aborts = st.integers(-4, -1)
"""Of the requests, the last but so many."""
actions = st.lists(st.one_of(prompts, prompts, prompts, alone, steps, steps, aborts, controls), min_size=1, max_size=25)


def add(engine: SymbolicEngine, ask: Ask) -> str:
    order = None
    if ask.has_order:
        # Without reuse, a request has no segments.
        spans = [] if ask.salt.startswith("exact") else ask.spans
        order = PrefillOrder(
            request_id=RequestId("asked"),
            domain_id=DomainId("d"),
            lineage=ask.salt,
            segments=segments_of(ask.tokens, spans),
            fusion=ask.fusion,
            kind=PrefillKind.ALONE if ask.is_alone else PrefillKind.PROMPT,
        )
    return engine.add(ask.tokens, order, salt=ask.salt, num_answer_tokens=ask.num_answer_tokens)


def play(engine: SymbolicEngine, moves: Sequence[object]) -> list[Ask]:
    """Returns those requests that have an order."""
    names: list[str] = []
    asked: list[Ask] = []
    for move in moves:
        match move:
            case Ask():
                names.append(add(engine, move))
                asked.append(move)
            case int() if move > 0:
                for _ in range(move):
                    engine.step()
            case int():
                if len(names) >= -move:
                    engine.abort(names[move])
            case SplitControl() | ClearControl():
                engine.bulletin.controls.append(move)
    engine.drain()
    return [ask for ask in asked if ask.has_order]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-model")


# Shrinking a failure takes minutes here.
laws = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@laws
@given(moves=actions, runs_ahead=st.booleans())
def test_every_token_is_computed_over_its_context_and_nothing_leaks(
    model_folder: Path, moves: list[object], runs_ahead: bool
) -> None:
    engine = SymbolicEngine(model_folder, runs_ahead=runs_ahead)
    asked = play(engine, moves)
    engine.assert_nothing_in_use()
    assert len(engine.facts) == len(asked)


@laws
@given(moves=actions, runs_ahead=st.booleans())
def test_facts_account_for_the_prompt(model_folder: Path, moves: list[object], runs_ahead: bool) -> None:
    engine = SymbolicEngine(model_folder, runs_ahead=runs_ahead)
    play(engine, moves)
    for facts in engine.facts:
        prefix_tokens = facts.device_prefix_tokens + facts.host_prefix_tokens
        hits = sum(fact.loaded_tokens for fact in facts.segments)
        assert 0 <= prefix_tokens + hits <= facts.prompt_tokens
        assert facts.computed_tokens <= facts.step_tokens
        for fact in facts.segments:
            assert fact.recomputed_tokens <= fact.loaded_tokens
            assert fact.loaded_tokens + fact.prefix_tokens <= fact.end - fact.start
            assert (fact.origin is None) == (fact.loaded_tokens == 0)
        if facts.is_whole and not engine.num_preemptions:
            recomputed = sum(fact.recomputed_tokens for fact in facts.segments)
            assert facts.computed_tokens == facts.prompt_tokens - prefix_tokens - hits + recomputed


@laws
@given(moves=actions, runs_ahead=st.booleans())
def test_events_tell_what_the_store_holds(model_folder: Path, moves: list[object], runs_ahead: bool) -> None:
    engine = SymbolicEngine(model_folder, runs_ahead=runs_ahead)
    play(engine, moves)
    blocks: set[int] = set()
    segments: dict[bytes, int] = {}
    for event in (event for news in engine.bulletin.news for event in news.events):
        match event:
            case HostBlocksStored():
                assert not blocks & set(event.block_hashes)
                blocks |= set(event.block_hashes)
            case HostBlocksRemoved():
                assert set(event.block_hashes) <= blocks
                blocks -= set(event.block_hashes)
            case SegmentStored():
                segments[event.segment_hash] = event.num_tokens
            case SegmentRemoved():
                del segments[event.segment_hash]
            case StoreCleared():
                blocks, segments = set(), {}
    # A block is 8 tokens, a page 4.
    assert 8 * len(blocks) + sum(-(-n // 4) * 4 for n in segments.values()) == engine.half.catalogue.used_tokens
