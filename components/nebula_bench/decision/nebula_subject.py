"""Nebula's decision on the workers and blocks of a scene, without a process of its own around it."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from nebula_bench.decision.scene import ScenePrompt, SceneSpec, StoredChain, stored_chains
from nebula_bench.decision.timing import Stopwatch
from nebula_bench.errors import BenchError
from nebula_protocol.card import WorkerCard
from nebula_protocol.cut_settings import CutSettings, make_cutter_config
from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.domain import Domain
from nebula_protocol.events import BlockEntry, SegmentEntry
from nebula_protocol.hashing import HashArray, hash_blocks, hash_segment
from nebula_protocol.ids import (
    BlockHash,
    EngineBlockHash,
    EventId,
    Origin,
    RequestId,
    Role,
    WorkerEpoch,
    WorkerId,
    WorkerWithDpRank,
)
from nebula_protocol.messages import StateChunk
from nebula_protocol.subjects import Topic
from nebula_protocol.tokens import TokenArray
from nebula_router.decide import Decided, RouterState
from nebula_router.request import RoutedRequest
from nebula_router.settings import RouterSettings
from pic_worker.adapters.sim.costs import make_costs
from pic_worker.settings import WorkerSettings

_DEVICE = 1
"""Bit of the device tier in `BlockEntry.tiers`."""
_NOW_S = 1_000.0
"""The state stands still while it is measured: what is booked would else finish by itself meanwhile."""


class NebulaSubject:
    """`RouterState.decide`: cut, hash, look up, plan, record."""

    def __init__(self, spec: SceneSpec, worker_ids: Sequence[WorkerId], model_folder: Path) -> None:
        self._spec = spec
        self._cutter = _read_cutter(model_folder)
        self._state = RouterState(RouterSettings(), self._cutter, _refuse_salt)
        self._request_ids = (RequestId(str(number)) for number in itertools.count())
        for worker_id, chains in zip(worker_ids, stored_chains(spec), strict=True):
            self._state.apply_state([self._full_state(worker_id, chains)], _NOW_S)
        self._holders = tuple(map(WorkerWithDpRank, worker_ids))
        self._domain_id = _card(spec, worker_ids[0]).domain.domain_id

    def count_blocks(self) -> int:
        """Prefix blocks in the index, over all workers."""
        return self._state.view.num_blocks

    def count_segments(self) -> int:
        return self._state.view.num_segments

    def check(self, prompt: ScenePrompt) -> None:
        """
        Raises:
            BenchError: the index does not find in the prompt what the scene's workers hold of it.
        """
        request = self._read(_body(prompt, marked=True))
        layout = cut_prompt(
            request.tokens,
            self._cutter,
            block_size_tokens=self._spec.block_size_tokens,
            spans=request.options.spans,
        )
        coverage = self._state.view.coverage(layout, self._domain_id, self._holders, _NOW_S)
        found = (int(coverage.prefix_device_tokens[0]), int(coverage.segment_states.any(axis=1).sum()))
        # All parts but the last, which is new.
        expected = (prompt.prefix_blocks * self._spec.block_size_tokens, len(prompt.spans) - 1)
        if found != expected:
            raise BenchError(f"Nebula's index finds {found} tokens and segments of {expected}")

    async def time_reading(self, prompt: ScenePrompt, *, marked: bool) -> float:
        """Seconds from the request as Dynamo hands it over to an array of ids and the client's marks."""
        body = _body(prompt, marked)
        with Stopwatch() as watch:
            self._read(body)
        return watch.seconds

    async def time_decision(self, prompt: ScenePrompt, *, marked: bool) -> float:
        """Seconds for deciding and recording; then it is taken back."""
        request = self._read(_body(prompt, marked))
        with Stopwatch() as watch:
            decided = self._state.decide(request, excluded=frozenset(), attempt=1, now_s=_NOW_S)
        self._take_back(decided)
        return watch.seconds

    def _read(self, body: dict[str, object]) -> RoutedRequest:
        return RoutedRequest.read(body, next(self._request_ids), self._state.context_tokens)

    def _take_back(self, decided: Decided) -> None:
        self._state.record_failure(decided, _NOW_S)
        for helper in decided.helpers:
            self._state.record_helper_failure(helper.task.for_request, helper.worker, _NOW_S)

    def _full_state(self, worker_id: WorkerId, chains: tuple[StoredChain, ...]) -> StateChunk:
        segments = {entry.segment_hash: entry for chain in chains for entry in self._segments(chain, worker_id)}
        return StateChunk(
            snapshot_id=0,
            index=0,
            last=True,
            card=_card(self._spec, worker_id),
            last_event_ids={topic: EventId(-1) for topic in (Topic.KV_EVENTS, Topic.PIC_EVENTS)},
            blocks=tuple(entry for chain in chains for entry in _blocks(self._spec, chain)),
            segments=tuple(segments.values()),
        )

    def _segments(self, chain: StoredChain, worker_id: WorkerId) -> list[SegmentEntry]:
        """The chain's parts as a client marks them, and as the cutter finds them without marks."""
        spec, tokens = self._spec, chain.tokens(self._spec)
        domain_id = _card(spec, worker_id).domain.domain_id
        cut = cut_prompt(tokens, self._cutter, block_size_tokens=spec.block_size_tokens)
        found = [(segment.segment_hash, segment.num_tokens) for segment in cut.segments]
        for start in range(0, len(tokens), spec.segment_tokens):
            part = tokens[start : start + spec.segment_tokens]
            found.append((hash_segment(part), len(part)))
        return [SegmentEntry(key, domain_id, num_tokens, Origin.IN_CONTEXT) for key, num_tokens in found]


def _blocks(spec: SceneSpec, chain: StoredChain) -> list[BlockEntry]:
    names = [EngineBlockHash(name) for name in chain.block_names()]
    hashes = hash_blocks(chain.tokens(spec), spec.block_size_tokens).tolist()
    parents = [None, *names[:-1]]
    return [
        BlockEntry(name, parent, BlockHash(tokens_hash), _DEVICE)
        for name, parent, tokens_hash in zip(names, parents, hashes, strict=True)
    ]


def _card(spec: SceneSpec, worker_id: WorkerId) -> WorkerCard:
    """The sim worker's default: Qwen3-14B on an H100."""
    settings = WorkerSettings()
    costs = make_costs(settings)
    return WorkerCard(
        worker_id=worker_id,
        epoch=WorkerEpoch(1),
        role=Role.PREFILL,
        domain=Domain(model=settings.sim.model, block_size_tokens=spec.block_size_tokens),
        engine=settings.engine,
        pic=True,
        context_tokens=2 * settings.context_tokens,
        device_capacity_tokens=settings.device_capacity_tokens,
        store_capacity_tokens=settings.store_capacity_tokens,
        kv_bytes_per_token=costs.kv_bytes_per_token,
        max_step_tokens=settings.max_step_tokens,
        num_layers=costs.num_layers,
        fusion=settings.fusion,
        step_cost=costs.fit,
        peer_link=costs.link,
        load_s_per_token=costs.load.segment_s_per_token,
    )


def _read_cutter(model_folder: Path) -> CutterConfig:
    tokenizer: Tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids

    return make_cutter_config(CutSettings(), encode)


def _body(prompt: ScenePrompt, marked: bool) -> dict[str, object]:
    return {"token_ids": prompt.token_ids, "annotations": [prompt.annotation] if marked else []}


def _refuse_salt(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    raise BenchError(f"no request of this benchmark has a salt, but one has {lineage!r}")
