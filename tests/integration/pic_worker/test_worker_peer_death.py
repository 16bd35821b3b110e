"""A peer that dies while it is waited for, on a real NATS server."""

import asyncio
from collections.abc import Iterable

import pytest

from nebula_nats.connection import connect
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import PeerReply, PeerRequest, PromptPulled, PullPrompt, SetSplit, StateChunk
from pic_worker.adapters.nats.peers import NatsPeers
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.errors import PeerGoneError

pytestmark = pytest.mark.integration

NAMESPACE = "peer_death"
PEER, ASKER = WorkerId(1), WorkerId(2)
PULL = PullPrompt(request_id=RequestId("r"), from_worker=ASKER)


class SlowAnswers:
    """Answers a pull after `delay_s`."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self.asked = asyncio.Event()

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        self.asked.set()
        await asyncio.sleep(self._delay_s)
        return PromptPulled(found=True, kv_bytes=1)

    def state_chunks(self) -> Iterable[StateChunk]:
        return ()

    def set_split(self, control: SetSplit) -> None:
        raise NotImplementedError


async def test_a_peer_that_dies_while_it_answers_is_gone_long_before_the_timeout(nats_url: str) -> None:
    peer_client, asker_client = await connect(nats_url, "peer"), await connect(nats_url, "asker")
    answers = SlowAnswers(delay_s=60)
    await NatsServer(peer_client, NAMESPACE, PEER, answers).start()
    pulling = asyncio.create_task(NatsPeers(asker_client, NAMESPACE).pull_prompt(PEER, PULL, timeout_s=60))
    await asyncio.wait_for(answers.asked.wait(), 5)
    await peer_client.close()
    with pytest.raises(PeerGoneError):
        await asyncio.wait_for(pulling, 5)
    await asker_client.close()


async def test_a_peer_that_only_takes_its_time_is_waited_for(nats_url: str) -> None:
    peer_client, asker_client = await connect(nats_url, "peer"), await connect(nats_url, "asker")
    # Longer than two probes, half a second each.
    await NatsServer(peer_client, NAMESPACE, PEER, SlowAnswers(delay_s=1.2)).start()
    pulled = await NatsPeers(asker_client, NAMESPACE).pull_prompt(PEER, PULL, timeout_s=10)
    assert pulled.found
    await asker_client.close()
    await peer_client.close()
