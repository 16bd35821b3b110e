"""Laws of the connector's half in vLLM's own scheduler, over ranks that find every read of what is not there.

The ranks check each token's context when it is computed, each copied token when it is copied, and that requests of an
exact lineage see nothing but the KV of a full prefill.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from pic_worker.adapters.vllm.engine_wire import ClearControl, PrefillFacts, PrefillKind, PrefillOrder, SplitControl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FUSIONS = (FULL_FUSION, NO_FUSION, legolink(2), legolink(30), cacheblend(0.3))
PASSAGES = tuple(
    [random.Random(seed).randrange(10, 500) for _ in range(num_tokens)]
    for seed, num_tokens in enumerate((3, 8, 13, 21, 30))
)
SALTS = ("", "", "tenant/", "exact/")


@dataclass(frozen=True)
class Again:
    """The request that came last but so many, once more."""

    back: int
    salt: str


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


Move = Ask | Again | SplitControl | ClearControl | int
"""A positive number of steps, or the abort of the request that came last but so many."""


def draw_moves(seed: int, num_moves: int = 40) -> list[Move]:
    """Hypothesis' own lists are too short for stores to fill and too varied for prompts to come back."""
    chance = random.Random(seed)
    return [_draw_move(chance) for _ in range(num_moves)]


def _draw_move(chance: random.Random) -> Move:
    match chance.choices(range(7), (6, 8, 1, 8, 2, 0.5, 0.3))[0]:
        case 0:
            numbers = [chance.randint(1, len(PASSAGES)) for _ in range(chance.randint(2, 6))]
            passages = tuple(number if chance.random() < 0.7 else -number for number in numbers)
            fusion, has_order = chance.choice(FUSIONS), chance.random() < 0.8
            return Ask(passages, fusion, chance.choice(SALTS), has_order, False, chance.randint(1, 12))
        case 1:
            return Again(chance.randint(0, 5), chance.choice(SALTS))
        case 2:
            return Ask((chance.randint(1, len(PASSAGES)),), NO_FUSION, "alone/", True, True, 1)
        case 3:
            return chance.randint(1, 6)
        case 4:
            return -chance.randint(1, 6)
        case 5:
            return SplitControl(prefix_ratio=chance.random())
        case _:
            return ClearControl()


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


def play(engine: SymbolicEngine, moves: Sequence[Move]) -> list[Ask]:
    """Returns those requests that have an order."""
    names: list[str] = []
    asked: list[Ask] = []
    for move in moves:
        match move:
            case Ask():
                names.append(add(engine, move))
                asked.append(move)
            case Again():
                if len(asked) > move.back:
                    asked.append(replace(asked[-1 - move.back], salt=move.salt, is_alone=False))
                    names.append(add(engine, asked[-1]))
            case int() if move > 0:
                for _ in range(move):
                    engine.step()
            case int():
                if len(names) >= -move:
                    engine.abort(names[move])
            case SplitControl() | ClearControl():
                engine.desk.obey(move)
    engine.drain()
    return [ask for ask in asked if ask.has_order]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-model")


# A smaller seed is no simpler case: shrinking would only take time.
@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
@given(seed=st.integers(0, 2**32), runs_ahead=st.booleans())
def test_whatever_is_asked_for_kv_is_read_only_where_it_is_and_all_is_accounted_for(
    model_folder: Path, seed: int, runs_ahead: bool
) -> None:
    engine = SymbolicEngine(model_folder, runs_ahead=runs_ahead)
    asked = play(engine, draw_moves(seed))
    engine.assert_nothing_in_use()
    assert len(engine.facts) == len(asked)
    for facts in engine.facts:
        check_facts(facts, was_preempted=engine.num_preemptions > 0)
    check_events(engine)


def check_facts(facts: PrefillFacts, *, was_preempted: bool) -> None:
    """They account for the prompt."""
    prefix_tokens = facts.device_prefix_tokens + facts.host_prefix_tokens
    hits = sum(fact.loaded_tokens for fact in facts.segments)
    assert 0 <= prefix_tokens + hits <= facts.prompt_tokens
    assert facts.computed_tokens <= facts.step_tokens
    for fact in facts.segments:
        assert fact.recomputed_tokens <= fact.loaded_tokens
        assert fact.loaded_tokens + fact.prefix_tokens <= fact.end - fact.start
        assert (fact.origin is None) == (fact.loaded_tokens == 0)
    if facts.is_whole and not was_preempted:
        recomputed = sum(fact.recomputed_tokens for fact in facts.segments)
        assert facts.computed_tokens == facts.prompt_tokens - prefix_tokens - hits + recomputed


def check_events(engine: SymbolicEngine) -> None:
    """Who has read them all knows what the store holds."""
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
