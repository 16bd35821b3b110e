"""Two vLLM prefill workers with a tiny model: what one has computed, the other uses without computing it."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pytest
import pytest_asyncio

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.domain import tenant_domain
from nebula_protocol.handover import Handover
from nebula_protocol.hashing import HashArray, hash_blocks, hash_segment
from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Estimate, HelperTask, Plan, SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason, Receipt
from nebula_protocol.tokens import TokenArray, as_token_array
from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.adapters.engines import build_prefill
from pic_worker.core.effects import DeviceEvent
from pic_worker.ports import PrefillWorker
from pic_worker.settings import WorkerSettings
from pic_worker.work import WorkRequest

if TYPE_CHECKING:
    from pic_worker.adapters.vllm.workers import VllmPrefillWorker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
]

A, B = WorkerId(11), WorkerId(12)
BLOCK = 32
SYSTEM, PASSAGE, QUESTION = 40, 200, 23
STORE_TOKENS = 4096
WAIT_BUDGET_S = 60.0
GONE_BUDGET_S = 10.0
NOTHING = RequestOptions()


@dataclass(frozen=True)
class Setup:
    transport: str = "tcp"
    num_ranks: int = 1

    def __str__(self) -> str:
        return f"{self.transport}, ranks: {self.num_ranks}"


PLAIN = Setup()
plainly = pytest.mark.parametrize("pair", [PLAIN], indirect=True, ids=str)
in_every_setup = pytest.mark.parametrize(
    "pair", [PLAIN, Setup(transport="nixl"), Setup(num_ranks=2)], indirect=True, ids=str
)


class NoBlockEvents:
    def publish(self, event: DeviceEvent) -> None:
        pass


def salted(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    # Nobody routes by these names here.
    return hash_blocks(tokens, block_size_tokens)


class Pair:
    """Workers by id."""

    def __init__(self, nats_url: str, folder: Path, model: Path, setup: Setup) -> None:
        self._nats_url = nats_url
        secret = folder / "secret"
        secret.write_text(secrets.token_hex(16))
        self._settings = WorkerSettings.model_validate(
            {
                "engine": "vllm",
                "namespace": uuid4().hex,
                "model_path": str(model),
                "model_name": "tiny",
                "block_size_tokens": BLOCK,
                "context_tokens": 2048,
                "device_capacity_tokens": 8192,
                "store_capacity_tokens": STORE_TOKENS,
                "max_step_tokens": 512,
                "max_running": 8,
                "cut": {"content_chunks": False},
                "vllm": {"cpu_threads": 1, "enforce_eager": True, "tensor_parallel": setup.num_ranks},
                "data_plane": {"secret_file": str(secret), "transport": setup.transport},
            }
        )
        self.workers: dict[WorkerId, PrefillWorker] = {}
        self._numbers = count()

    async def start(self, worker_id: WorkerId) -> None:
        self.workers[worker_id] = await build_prefill(
            self._settings, worker_id, self._nats_url, block_events=NoBlockEvents(), hash_salted=salted
        )

    async def stop(self, worker_id: WorkerId) -> None:
        await self.workers.pop(worker_id).close()

    async def ask(
        self,
        worker_id: WorkerId,
        passages: tuple[str, str],
        source: Source,
        from_worker: WorkerId | None = None,
        *,
        question: str = "what",
        options: RequestOptions = NOTHING,
        keep: bool = True,
    ) -> Handover:
        tokens = prompt_of(passages, question)
        request_id = RequestId(f"request-{next(self._numbers)}")
        origin = None if from_worker is None else WorkerWithDpRank(from_worker)
        segments = tuple(
            SegmentPlan(
                start=start,
                end=start + PASSAGE,
                segment_hash=hash_segment(tokens[start : start + PASSAGE]),
                source=source,
                from_worker=origin,
                keep=keep,
            )
            for start in (SYSTEM, SYSTEM + PASSAGE)
        )
        plan = Plan(
            request_id=request_id,
            domain_id=tenant_domain(self.domain_id(), options.cache_salt),
            target=WorkerWithDpRank(worker_id),
            segments=segments,
            prefix_hit_tokens=0,
            wait_budget_s=WAIT_BUDGET_S,
            estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
            hands_over=False,
        )
        work = WorkRequest(tokens, 1, options, plan, None, BODY)
        return await self.workers[worker_id].prefill(request_id, work)

    async def help(self, worker_id: WorkerId, passages: tuple[str, ...]) -> None:
        pieces = [passage_of(name, PASSAGE) for name in passages]
        task = HelperTask(
            for_request=RequestId("helped"),
            domain_id=self.domain_id(),
            segments=tuple((hash_segment(piece), PASSAGE) for piece in pieces),
        )
        work = WorkRequest(np.concatenate(pieces), 1, NOTHING, None, task, {})
        await self.workers[worker_id].help(RequestId(f"help-{next(self._numbers)}"), work)

    async def until_gone(self, worker_id: WorkerId, passages: tuple[str, ...]) -> None:
        """Until the worker's store has none of them, as far as it tells."""
        wanted = {hash_segment(passage_of(name, PASSAGE)) for name in passages}
        worker = self._vllm(worker_id)
        async with asyncio.timeout(GONE_BUDGET_S):
            while wanted & {entry.segment_hash for chunk in worker.service.state_chunks() for entry in chunk.segments}:
                await asyncio.sleep(0.01)

    def num_stored_tokens(self, worker_id: WorkerId) -> int:
        """In segments, as far as the worker tells."""
        chunks = self._vllm(worker_id).service.state_chunks()
        return sum(entry.num_tokens for chunk in chunks for entry in chunk.segments)

    def domain_id(self) -> DomainId:
        return self._vllm(B).cutter.domain_id

    def _vllm(self, worker_id: WorkerId) -> "VllmPrefillWorker":
        from pic_worker.adapters.vllm.workers import VllmPrefillWorker

        worker = self.workers[worker_id]
        assert isinstance(worker, VllmPrefillWorker)
        return worker


BODY: dict[str, object] = {
    "sampling_options": {"temperature": 0.0},
    "output_options": {"logprobs": 5},
}


def passage_of(name: str, num_tokens: int) -> TokenArray:
    drawn = np.random.default_rng(int.from_bytes(name.encode())).integers(20, 4000, num_tokens)
    return as_token_array(drawn.tolist())


def prompt_of(passages: tuple[str, str], question: str) -> TokenArray:
    parts = [passage_of(f"system-{question}", SYSTEM), *(passage_of(name, PASSAGE) for name in passages)]
    return np.concatenate([*parts, passage_of(question, QUESTION)])


def sources_of(receipt: Receipt) -> set[Source]:
    return {segment.done for segment in receipt.segments}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from pic_worker.adapters.vllm.tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer_folder=packaged_folder())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    nats_url: str, tmp_path_factory: pytest.TempPathFactory, model: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Pair]:
    setup: Setup = request.param
    if setup.transport == "nixl":
        pytest.importorskip("nixl._api", reason="NIXL is not installed")
    pair = Pair(nats_url, tmp_path_factory.mktemp("pair"), model, setup)
    try:
        await pair.start(A)
        await pair.start(B)
        yield pair
    finally:
        for worker_id in list(pair.workers):
            await pair.stop(worker_id)


@in_every_setup
async def test_a_passage_computed_on_one_worker_is_used_by_the_other_with_the_same_output(pair: Pair) -> None:
    await pair.ask(A, ("p1", "p2"), Source.COMPUTE)
    fetched = await pair.ask(B, ("p2", "p1"), Source.FETCH, A, question="who")
    local = await pair.ask(A, ("p2", "p1"), Source.LOCAL, question="who")
    receipt = fetched.receipt
    assert (receipt.fetched_hit_tokens, receipt.local_hit_tokens) == (2 * PASSAGE, 0)
    assert sources_of(receipt) == {Source.FETCH}
    assert receipt.computed_tokens == SYSTEM + QUESTION
    assert receipt.timing.wait_s > 0
    assert all(segment.stored for segment in receipt.segments)
    assert local.receipt.local_hit_tokens == 2 * PASSAGE
    assert fetched.first is not None
    assert fetched.first.top_tokens
    assert fetched.first == local.first


@plainly
async def test_a_copy_that_is_not_to_be_kept_goes(pair: Pair) -> None:
    await pair.ask(A, ("k1", "k2"), Source.COMPUTE)
    fetched = await pair.ask(B, ("k2", "k1"), Source.FETCH, A, keep=False)
    assert fetched.receipt.fetched_hit_tokens == 2 * PASSAGE
    # The answer leaves before the copies do.
    await pair.until_gone(B, ("k1", "k2"))
    again = await pair.ask(B, ("k1", "k2"), Source.LOCAL, question="where")
    assert {segment.fallback for segment in again.receipt.segments} == {FallbackReason.NOT_THERE}


@plainly
async def test_two_requests_that_miss_the_same_segment_cost_one_computation(pair: Pair) -> None:
    first, second = await asyncio.gather(
        pair.ask(A, ("j1", "j2"), Source.COMPUTE), pair.ask(B, ("j1", "j2"), Source.JOIN, A, question="who")
    )
    assert first.receipt.segment_hit_tokens == 0
    assert sources_of(second.receipt) == {Source.JOIN}
    assert second.receipt.fetched_hit_tokens == 2 * PASSAGE


@in_every_setup
async def test_segments_that_a_helper_computes_alone_are_fetched(pair: Pair) -> None:
    helping = asyncio.create_task(pair.help(A, ("h1", "h2")))
    prefilled = await pair.ask(B, ("h1", "h2"), Source.COMPUTE_AT, A)
    await helping
    receipt = prefilled.receipt
    assert sources_of(receipt) == {Source.COMPUTE_AT}
    assert {segment.origin for segment in receipt.segments} == {"alone"}


@plainly
async def test_stores_that_are_full_make_room_for_what_is_copied_and_computed(pair: Pair) -> None:
    # Twelve times 400 tokens, where each of the two stores holds 4,096.
    for number in range(12):
        passages = (f"full-{number}a", f"full-{number}b")
        await pair.ask(A, passages, Source.COMPUTE)
        fetched = await pair.ask(B, passages[::-1], Source.FETCH, A, question="who")
        assert fetched.receipt.fetched_hit_tokens == 2 * PASSAGE
    local = await pair.ask(A, passages[::-1], Source.LOCAL, question="who")
    assert local.receipt.local_hit_tokens == 2 * PASSAGE
    assert fetched.first == local.first
    for worker_id in (A, B):
        await pair.until_gone(worker_id, ("full-0a", "full-0b"))
        assert pair.num_stored_tokens(worker_id) <= STORE_TOKENS


@plainly
async def test_tenants_do_not_share(pair: Pair) -> None:
    await pair.ask(A, ("t1", "t2"), Source.COMPUTE, options=RequestOptions(cache_salt="mine"))
    for options in (NOTHING, RequestOptions(cache_salt="yours")):
        theirs = await pair.ask(B, ("t2", "t1"), Source.FETCH, A, options=options)
        assert {segment.fallback for segment in theirs.receipt.segments} == {FallbackReason.NOT_THERE}
    mine = await pair.ask(B, ("t2", "t1"), Source.FETCH, A, options=RequestOptions(cache_salt="mine"), question="who")
    assert mine.receipt.fetched_hit_tokens == 2 * PASSAGE


@plainly
async def test_a_source_that_is_gone_costs_time_but_not_the_answer(pair: Pair) -> None:
    await pair.ask(A, ("d1", "d2"), Source.COMPUTE)
    await pair.stop(A)
    lost = await pair.ask(B, ("d2", "d1"), Source.FETCH, A)
    receipt = lost.receipt
    assert receipt.segment_hit_tokens == 0
    assert {segment.fallback for segment in receipt.segments} == {FallbackReason.SOURCE_GONE}
    await pair.start(A)
