"""A decode worker as far as prefill feels it: it pulls the prompt's KV over its link, then takes its time."""

import simpy

from nebula_bench.cluster.peers import Peers, Waiting
from nebula_protocol.cost import LinkFit
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import PullPrompt
from nebula_router.errors import WorkerGoneError
from pic_worker.core.link import Link
from pic_worker.decode_service import PULL_GRACE_S
from pic_worker.errors import PeerGoneError


class DecodeWorker:
    def __init__(
        self, env: simpy.Environment, worker_id: WorkerId, peers: Peers, link_fit: LinkFit, token_s: float
    ) -> None:
        self._env = env
        self._worker_id = worker_id
        self._peers = peers
        self._link_fit = link_fit
        self._link = Link(link_fit)
        self._token_s = token_s

    def decode(self, request_id: RequestId, prefill_worker: WorkerId, kv_bytes: int, num_tokens: int) -> Waiting[None]:
        """Takes the prompt over and makes `num_tokens` more.

        Raises:
            WorkerGoneError: the prefill worker no longer has the prompt's KV, or is no more.
        """
        request = PullPrompt(request_id=request_id, from_worker=self._worker_id)
        timeout_s = self._link_fit.transfer_s(kv_bytes) + PULL_GRACE_S
        try:
            pulled = yield from self._peers.pull_prompt(prefill_worker, request, timeout_s)
        except PeerGoneError as error:
            raise WorkerGoneError(prefill_worker, str(error)) from error
        if not pulled.found:
            raise WorkerGoneError(prefill_worker, "it has dropped the prompt's KV")
        arrived_s = self._link.receive(pulled.kv_bytes, self._env.now)
        yield self._env.timeout(max(0.0, arrived_s - self._env.now) + num_tokens * self._token_s)
