"""Several services on one network: segments fetched, joined and computed elsewhere, and every way in which that fails.

A prompt's own tokens take 8 ms here, its segment of 20 tokens 2 ms recomputed and 18 ms loaded, or 20 ms computed. The
segment travels for 3 ms: 1 ms floor, and 200 bytes at 1e5 bytes/s.
"""

import asyncio

import pytest
from msgspec import structs
from support.engine_world import helper, join, passage, planned, span, unplanned
from support.virtual_time import now_s
from support.worker_net import NetWorker, WorkerNet

from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import Origin, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import FetchedSegment, FetchReply, FetchRequest, PeerReply, PeerRequest
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt
from nebula_protocol.tokens import token_bytes
from pic_worker.core.engine_request import EngineRequest
from pic_worker.errors import PeerGoneError

SEGMENT = passage(1, 20)
TOKENS = join(passage(2, 4), SEGMENT, passage(3, 4))
REUSED_S = 0.028
COMPUTED_S = 0.028
TRANSFER_S = 0.003
NOBODY = WorkerWithDpRank(WorkerId(9))


def wants(source: Source, from_worker: WorkerWithDpRank, wait_budget_s: float = 1.0) -> EngineRequest:
    """The prompt with its segment from there."""
    return planned("wants", TOKENS, [span(TOKENS, 4, 24, source, from_worker)], wait_budget_s=wait_budget_s)


def holds() -> EngineRequest:
    """Another prompt with the segment, which its worker has when its 24 ms are over."""
    return unplanned("holds", join(passage(5, 4), SEGMENT), [(4, 24)])


def reuses() -> EngineRequest:
    """A third one, for a worker that has the segment."""
    return unplanned("reuses", join(passage(6, 4), SEGMENT, passage(7, 4)), [(4, 24)])


async def receipt_of(worker: NetWorker, request: EngineRequest) -> Receipt:
    return (await worker.service.prefill(request)).receipt


def assert_computed(receipt: Receipt, reason: FallbackReason) -> None:
    """The worker computed the segment itself, and the prompt is whole."""
    (outcome,) = receipt.segments
    assert (outcome.done, outcome.fallback) == (Source.COMPUTE, reason)
    assert (receipt.segment_hit_tokens, receipt.computed_tokens) == (0, 28)
    assert receipt.timing.compute_s == pytest.approx(COMPUTED_S)


async def test_a_fetched_segment_is_used_and_kept(net: WorkerNet) -> None:
    home, holder = net.add(1), net.add(2)
    await receipt_of(holder, holds())
    receipt = await receipt_of(home, wants(Source.FETCH, holder.at))
    (outcome,) = receipt.segments
    assert (outcome.done, outcome.fallback, outcome.origin) == (Source.FETCH, None, Origin.IN_CONTEXT)
    assert outcome.stored
    assert (receipt.fetched_hit_tokens, receipt.local_hit_tokens, receipt.computed_tokens) == (20, 0, 8)
    assert receipt.timing.wait_s == pytest.approx(TRANSFER_S)
    assert receipt.timing.total_s == pytest.approx(TRANSFER_S + REUSED_S)
    assert (await receipt_of(home, reuses())).local_hit_tokens == 20
    assert holder.engine.stats().store_pinned_tokens == 0


async def test_two_workers_that_fetch_from_one_share_its_link(net: WorkerNet) -> None:
    homes, holder = [net.add(1), net.add(3)], net.add(2)
    await receipt_of(holder, holds())
    receipts = await asyncio.gather(*(receipt_of(home, wants(Source.FETCH, holder.at)) for home in homes))
    assert [receipt.segments[0].done for receipt in receipts] == [Source.FETCH, Source.FETCH]
    # The second's 200 bytes leave 2 ms later.
    assert [receipt.timing.wait_s for receipt in receipts] == pytest.approx([0.003, 0.005])


async def test_segments_from_several_workers_arrive_side_by_side(net: WorkerNet) -> None:
    home, holders = net.add(1), [net.add(2), net.add(3)]
    other = passage(6, 20)
    for holder, segment in zip(holders, (SEGMENT, other), strict=True):
        await receipt_of(holder, unplanned("holds", join(passage(5, 4), segment), [(4, 24)]))
    tokens = join(passage(2, 4), SEGMENT, other, passage(3, 4))
    plan = [span(tokens, 4, 24, Source.FETCH, holders[0].at), span(tokens, 24, 44, Source.FETCH, holders[1].at)]
    receipt = await receipt_of(home, planned("wants", tokens, plan, wait_budget_s=1.0))
    assert receipt.fetched_hit_tokens == 40
    # Both are sent within 3 ms; the second's 2 ms follow the first's into the one link that takes them in.
    assert receipt.timing.wait_s == pytest.approx(0.005)


async def test_a_join_at_another_worker_waits_until_the_segment_is_computed_there(net: WorkerNet) -> None:
    home, maker = net.add(1), net.add(2)
    making = asyncio.create_task(receipt_of(maker, holds()))
    await asyncio.sleep(0)
    receipt = await receipt_of(home, wants(Source.JOIN, maker.at))
    (outcome,) = receipt.segments
    assert (outcome.done, outcome.origin) == (Source.JOIN, Origin.IN_CONTEXT)
    assert receipt.timing.wait_s == pytest.approx(0.024 + TRANSFER_S)
    await making


async def test_a_join_that_comes_before_the_request_it_joins_waits_for_that_too(net: WorkerNet) -> None:
    home, maker = net.add(1), net.add(2)
    joining = asyncio.create_task(receipt_of(home, wants(Source.JOIN, maker.at)))
    await asyncio.sleep(0.1)
    await receipt_of(maker, holds())
    receipt = await joining
    assert receipt.segments[0].done is Source.JOIN
    assert receipt.timing.wait_s == pytest.approx(0.1 + 0.024 + TRANSFER_S)


async def test_a_join_of_what_nobody_makes_is_declined_after_a_moment(net: WorkerNet) -> None:
    home, idle = net.add(1), net.add(2, join_grace_s=0.25)
    receipt = await receipt_of(home, wants(Source.JOIN, idle.at))
    assert_computed(receipt, FallbackReason.NOT_THERE)
    assert receipt.timing.wait_s == pytest.approx(0.25)


async def test_a_join_ends_when_the_request_that_makes_the_segment_is_cancelled(net: WorkerNet) -> None:
    home, maker = net.add(1), net.add(2)
    making = asyncio.create_task(receipt_of(maker, holds()))
    await asyncio.sleep(0)
    joining = asyncio.create_task(receipt_of(home, wants(Source.JOIN, maker.at)))
    await asyncio.sleep(0.010)
    making.cancel()
    receipt = await joining
    assert_computed(receipt, FallbackReason.NOT_THERE)
    assert receipt.timing.wait_s == pytest.approx(0.010)


async def test_a_segment_that_a_helper_computes_alone_is_fetched_from_there(net: WorkerNet) -> None:
    home, assistant = net.add(1), net.add(2)
    prefill = asyncio.create_task(receipt_of(home, wants(Source.COMPUTE_AT, assistant.at)))
    await asyncio.sleep(0.010)
    helped = await assistant.service.help(helper("h", SEGMENT))
    receipt = await prefill
    assert (helped.computed_tokens, helped.segment_hit_tokens) == (20, 0)
    (outcome,) = receipt.segments
    assert (outcome.done, outcome.origin) == (Source.COMPUTE_AT, Origin.ALONE)
    assert (receipt.fetched_hit_tokens, receipt.computed_tokens) == (20, 8)
    # The helper began 10 ms later and computed for 20 ms.
    assert receipt.timing.wait_s == pytest.approx(0.010 + 0.020 + TRANSFER_S)


async def test_a_worker_that_is_not_there_costs_no_time_and_no_error(net: WorkerNet) -> None:
    home = net.add(1)
    receipt = await receipt_of(home, wants(Source.FETCH, NOBODY))
    assert_computed(receipt, FallbackReason.SOURCE_GONE)
    assert (receipt.timing.wait_s, receipt.invalid_hit_tokens) == (0, 20)


async def test_a_worker_that_dies_while_it_sends_is_missed_when_all_should_be_there(net: WorkerNet) -> None:
    home, holder = net.add(1), net.add(2)
    await receipt_of(holder, holds())
    prefill = asyncio.create_task(receipt_of(home, wants(Source.FETCH, holder.at, wait_budget_s=0.1)))
    await asyncio.sleep(0.001)
    net.peers.leave(holder.at.worker_id)
    receipt = await prefill
    assert_computed(receipt, FallbackReason.SOURCE_GONE)
    assert receipt.timing.wait_s == pytest.approx(TRANSFER_S)
    assert (await receipt_of(home, reuses())).local_hit_tokens == 20


async def test_a_worker_that_does_not_have_the_segment_says_so(net: WorkerNet) -> None:
    home, other = net.add(1), net.add(2)
    receipt = await receipt_of(home, wants(Source.FETCH, other.at))
    assert_computed(receipt, FallbackReason.NOT_THERE)
    assert (receipt.timing.wait_s, receipt.invalid_hit_tokens) == (0, 20)


class OtherTokens:
    """Answers with tokens that are not those of the hash."""

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        if not isinstance(request, FetchRequest):
            raise PeerGoneError(request.from_worker, "it only answers fetches")
        segments = tuple(
            FetchedSegment(
                segment_hash=wanted.segment_hash,
                token_bytes=token_bytes(passage(77, wanted.num_tokens)),
                origin=Origin.IN_CONTEXT,
                kv_bytes=10 * wanted.num_tokens,
            )
            for wanted in request.segments
        )
        return FetchReply(epoch=WorkerEpoch(1), segments=segments)


async def test_kv_of_other_tokens_under_the_same_hash_is_neither_used_nor_kept(net: WorkerNet) -> None:
    home = net.add(1)
    net.peers.join(NOBODY.worker_id, OtherTokens())
    receipt = await receipt_of(home, wants(Source.FETCH, NOBODY))
    assert_computed(receipt, FallbackReason.TOKENS_DIFFER)
    # What it keeps is what it computed.
    assert receipt.segments[0].stored
    assert (await receipt_of(home, reuses())).local_hit_tokens == 20


async def test_a_planned_segment_whose_hash_is_not_that_of_its_tokens_is_passed_over(net: WorkerNet) -> None:
    home, holder = net.add(1), net.add(2)
    await receipt_of(holder, holds())
    wrong = structs.replace(span(TOKENS, 5, 25, Source.FETCH, holder.at), segment_hash=hash_segment(SEGMENT))
    receipt = await receipt_of(home, planned("wants", TOKENS, [wrong], wait_budget_s=1.0))
    assert (receipt.segments, receipt.computed_tokens) == ((), 28)


async def test_a_request_that_leaves_while_it_fetches_leaves_nothing_behind(net: WorkerNet) -> None:
    home, holder = net.add(1), net.add(2)
    await receipt_of(holder, holds())
    prefill = asyncio.create_task(receipt_of(home, wants(Source.FETCH, holder.at)))
    await asyncio.sleep(0.001)
    prefill.cancel()
    await asyncio.sleep(1)
    assert prefill.cancelled()
    stats = home.engine.stats()
    assert (stats.num_waiting, stats.device_held_blocks, stats.store_segment_tokens) == (0, 0, 0)
    assert holder.engine.stats().store_pinned_tokens == 0


async def test_a_peers_wait_ends_in_time_while_this_worker_computes_for_others(net: WorkerNet) -> None:
    home, busy = net.add(1), net.add(2, join_grace_s=0.05)
    computing = asyncio.create_task(receipt_of(busy, unplanned("long", passage(8, 100))))
    await asyncio.sleep(0)
    receipt = await receipt_of(home, wants(Source.JOIN, busy.at, wait_budget_s=0.2))
    # The answer is due at 50 ms, in the middle of a step of 100 ms.
    assert_computed(receipt, FallbackReason.NOT_THERE)
    assert receipt.timing.wait_s == pytest.approx(0.05)
    await computing
    assert now_s() == pytest.approx(0.1)
