"""A router service over real cores, with fakes at its ports and a clock that only the test moves.

Workers are those of `placement_case`: a step takes 10 ms and 0.1 ms a token, a block has 16 tokens.
"""

from collections.abc import Sequence

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from support.placement_case import round_card
from support.router_outside import RecordedDecisions
from support.router_replies import prefill_reply, receipt_for
from support.router_worker_pool import FakeWorkerPool

from nebula_protocol.card import WorkerCard
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.hashing import HashArray, hash_blocks, salt_of
from nebula_protocol.ids import EventId, RequestId
from nebula_protocol.messages import StateChunk
from nebula_protocol.plan import Source
from nebula_protocol.subjects import Topic
from nebula_protocol.tokens import TokenArray
from nebula_router.decide import Decided, RouterState
from nebula_router.metrics import MetricName, RouterMetrics
from nebula_router.ports import JsonObject, Origin
from nebula_router.request import RoutedRequest
from nebula_router.service import RouterService
from nebula_router.settings import RouterSettings

CUTTER = CutterConfig(content_chunks=None, message_starts=((9_999,),), min_segment_tokens=32)


def state_of(card: WorkerCard) -> list[StateChunk]:
    """The full state of a worker that holds nothing and has published nothing."""
    last_event_ids = {Topic.KV_EVENTS: EventId(-1), Topic.PIC_EVENTS: EventId(-1)}
    return [StateChunk(snapshot_id=1, index=0, last=True, card=card, last_event_ids=last_event_ids)]


def hash_salted(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    """A `BlockHasher`: another salt gives other hashes."""
    return hash_blocks(tokens, block_size_tokens) ^ np.uint64(salt_of(lineage))


def new_state(*cards: WorkerCard, **settings: object) -> RouterState:
    state = RouterState(RouterSettings.model_validate(settings), CUTTER, hash_salted)
    for card in cards:
        state.apply_state(state_of(card), 0.0)
    return state


def body_of(
    token_ids: Sequence[int],
    *,
    max_tokens: int | None = 4,
    annotations: Sequence[str] = (),
    extra_fields: Sequence[str] = (),
) -> JsonObject:
    """A request as Dynamo's frontend sends it."""
    return {
        "model": "m",
        "token_ids": list(token_ids),
        "stop_conditions": {"max_tokens": max_tokens, "ignore_eos": False},
        "sampling_options": {"temperature": 0.5},
        "annotations": list(annotations),
        "extra_args": {"nvext": {"extra_fields": list(extra_fields)}},
    }


def spans(*bounds: tuple[int, int]) -> str:
    """The annotation that marks them."""
    return "nebula.spans=[" + ",".join(f"[{start},{end}]" for start, end in bounds) + "]"


def decide(
    state: RouterState,
    body: JsonObject,
    request_id: str = "r",
    *,
    excluded: Sequence[int] = (),
    attempt: int = 1,
    now_s: float = 0.0,
) -> Decided:
    request = RoutedRequest.read(body, RequestId(request_id), state.context_tokens)
    return state.decide(request, excluded=frozenset(excluded), attempt=attempt, now_s=now_s)  # type: ignore[arg-type]


def known_workers(state: RouterState) -> set[int]:
    return set(state.worker_ids())


def metric_value(metrics: RouterMetrics, name: MetricName, **labels: str) -> float | None:
    """None when there is no such sample; a histogram's is its number of observations."""
    for family in text_string_to_metric_families(metrics.exposition()):
        for sample in family.samples:
            if sample.name in (name, f"{name}_count") and sample.labels == labels:
                return sample.value
    return None


class RouterWorld:
    def __init__(
        self,
        prefill: Sequence[int] = (1, 2, 3),
        *,
        has_sink: bool = True,
        **settings: object,
    ) -> None:
        self.now_s = 0.0
        self.state = new_state(*map(round_card, prefill), **settings)
        self.prefill = FakeWorkerPool(prefill_reply, *prefill)
        self.decisions = RecordedDecisions()
        self.metrics = RouterMetrics()
        self.service = RouterService(
            RouterSettings.model_validate(settings),
            state=self.state,
            prefill_pool=self.prefill,
            decisions=self.decisions if has_sink else None,
            metrics=self.metrics,
            clock=lambda: self.now_s,
        )

    async def answer(self, body: JsonObject, request_id: str = "r", origin: Origin = None) -> JsonObject:
        """The chunk that goes to the frontend."""
        return await self.service.handle(body, RequestId(request_id), origin)

    def metric(self, name: MetricName, **labels: str) -> float | None:
        return metric_value(self.metrics, name, **labels)


def served(state: RouterState, body: JsonObject, request_id: str = "before", now_s: float = 0.0) -> Decided:
    """A request that went as planned: what it leaves is expected to be there."""
    decided = decide(state, body, request_id, now_s=now_s)
    token_ids = body["token_ids"]
    assert isinstance(token_ids, list)
    state.record_receipt(decided, receipt_for(decided.plan, len(token_ids)), now_s)
    return decided


def sources(decided: Decided) -> list[Source]:
    return [segment.source for segment in decided.plan.segments]
