"""The fetcher by itself: what it asks, how long it waits, and that each segment is reported once."""

import asyncio

import pytest
from support.fake_peers import FakePeers
from support.virtual_time import now_s
from support.worker_net import KV_BYTES_PER_TOKEN, LINK

from nebula_protocol.ids import DomainId, Origin, RequestId, SegmentHash, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import (
    FetchedSegment,
    FetchReply,
    FetchRequest,
    PeerReply,
    PeerRequest,
    PromptPulled,
    WantedSegment,
)
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.effects import FetchCommand
from pic_worker.core.link import Link
from pic_worker.fetcher import Fetched, Fetcher
from pic_worker.metrics import WorkerMetrics

HOME, PEER, OTHER_PEER = WorkerId(1), WorkerId(2), WorkerId(3)
FIRST, SECOND, THIRD = (SegmentHash(bytes([n]) * 16) for n in range(3))
TOKENS_EACH = 20


def fetched(segment_hash: SegmentHash) -> FetchedSegment:
    return FetchedSegment(
        segment_hash=segment_hash,
        token_bytes=b"x" * 4 * TOKENS_EACH,
        origin=Origin.ALONE,
        kv_bytes=TOKENS_EACH * KV_BYTES_PER_TOKEN,
    )


class Peer:
    """Answers every fetch alike, after a time."""

    def __init__(self, *segments: FetchedSegment, after_s: float = 0.0) -> None:
        self.asked: list[PeerRequest] = []
        self._segments = segments
        self._after_s = after_s

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        self.asked.append(request)
        await asyncio.sleep(self._after_s)
        return FetchReply(epoch=WorkerEpoch(1), segments=self._segments)


class PulledInstead:
    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        return PromptPulled(found=False, kv_bytes=0)


class Fetching:
    """A fetcher, and what it reported when."""

    def __init__(self) -> None:
        self.peers = FakePeers()
        self.reports: list[tuple[float, Fetched]] = []
        self._fetcher = Fetcher(
            worker_id=HOME,
            peers=self.peers,
            ingress=Link(LINK),
            link_fit=LINK,
            kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            clock=asyncio.get_running_loop().time,
            meter=WorkerMetrics().transfers("sim"),
        )

    def start(self, *segments: SegmentHash, peer: WorkerId = PEER, wait_s: float = 0.5) -> None:
        wanted = tuple(WantedSegment(segment_hash=segment, num_tokens=TOKENS_EACH, join=True) for segment in segments)
        command = FetchCommand(RequestId("r"), WorkerWithDpRank(peer), DomainId("d"), wait_s, wanted)
        self._fetcher.start(command, lambda report: self.reports.append((now_s(), report)))

    def results(self) -> dict[SegmentHash, FetchedSegment | FallbackReason]:
        """By segment, each reported once."""
        results = {report.segment_hash: report.result for _, report in self.reports}
        assert len(results) == len(self.reports)
        return results


@pytest.fixture
async def fetching() -> Fetching:
    return Fetching()


async def test_the_peer_is_asked_for_all_segments_of_a_command_at_once(fetching: Fetching) -> None:
    peer = Peer(fetched(FIRST), fetched(SECOND))
    fetching.peers.join(PEER, peer)
    fetching.start(FIRST, SECOND)
    await asyncio.sleep(1)
    (asked,) = peer.asked
    assert isinstance(asked, FetchRequest)
    assert (asked.request_id, asked.from_worker, asked.domain_id, asked.wait_s) == ("r", HOME, "d", 0.5)
    assert [(wanted.segment_hash, wanted.join) for wanted in asked.segments] == [(FIRST, True), (SECOND, True)]
    assert fetching.results() == {FIRST: fetched(FIRST), SECOND: fetched(SECOND)}


async def test_segments_that_the_answer_lacks_are_not_there_and_others_are_no_matter(fetching: Fetching) -> None:
    fetching.peers.join(PEER, Peer(fetched(SECOND), fetched(THIRD), fetched(SECOND)))
    fetching.start(FIRST, SECOND)
    await asyncio.sleep(1)
    assert fetching.results() == {FIRST: FallbackReason.NOT_THERE, SECOND: fetched(SECOND)}


async def test_without_the_peer_every_segment_is_reported_gone_at_once(fetching: Fetching) -> None:
    fetching.start(FIRST, SECOND)
    await asyncio.sleep(1)
    assert fetching.results() == dict.fromkeys((FIRST, SECOND), FallbackReason.SOURCE_GONE)
    assert [reported_s for reported_s, _ in fetching.reports] == [0, 0]


async def test_a_silent_peer_is_given_its_wait_the_transfer_and_a_grace(fetching: Fetching) -> None:
    fetching.peers.join(PEER, Peer(fetched(FIRST), after_s=100))
    fetching.start(FIRST, wait_s=0.5)
    await asyncio.sleep(50)
    assert fetching.results() == {FIRST: FallbackReason.SOURCE_GONE}
    # 0.5 s, 1 ms + 200 bytes at 1e5 bytes/s, and 2 s.
    assert fetching.reports[0][0] == pytest.approx(0.5 + 0.003 + 2.0)


async def test_a_peer_may_use_its_whole_wait(fetching: Fetching) -> None:
    fetching.peers.join(PEER, Peer(fetched(FIRST), after_s=0.5))
    fetching.start(FIRST, wait_s=0.5)
    await asyncio.sleep(1)
    assert fetching.results() == {FIRST: fetched(FIRST)}


async def test_what_two_peers_send_at_once_comes_in_one_behind_the_other(fetching: Fetching) -> None:
    for number, segment in ((PEER, FIRST), (OTHER_PEER, SECOND)):
        fetching.peers.join(number, Peer(fetched(segment), after_s=0.010))
        fetching.start(segment, peer=number)
    await asyncio.sleep(1)
    # Both have sent their 200 bytes at 10 ms; 2 ms of them did not fit into this worker's link meanwhile.
    assert [reported_s for reported_s, _ in fetching.reports] == pytest.approx([0.010, 0.012])
    assert set(fetching.results()) == {FIRST, SECOND}


async def test_a_slow_peer_does_not_hold_up_another(fetching: Fetching) -> None:
    fetching.peers.join(PEER, Peer(fetched(FIRST), after_s=0.4))
    fetching.peers.join(OTHER_PEER, Peer(fetched(SECOND)))
    fetching.start(FIRST)
    fetching.start(SECOND, peer=OTHER_PEER)
    await asyncio.sleep(1)
    assert [report.segment_hash for _, report in fetching.reports] == [SECOND, FIRST]


async def test_a_peer_that_answers_with_something_else_counts_as_gone(fetching: Fetching) -> None:
    fetching.peers.join(PEER, PulledInstead())
    fetching.start(FIRST)
    await asyncio.sleep(1)
    assert fetching.results() == {FIRST: FallbackReason.SOURCE_GONE}
