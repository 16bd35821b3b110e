"""The decode half of a simulated worker: fetches or computes the prompt's KV, then emits tokens at a fixed pace."""

import asyncio
from collections.abc import AsyncIterator

import structlog

from nebula_protocol.cost import LinkFit
from nebula_protocol.handover import Handover
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import PullPrompt
from pic_worker.core.fixed_answer import FixedAnswer
from pic_worker.core.link import Link
from pic_worker.core.step_cost import StepCost
from pic_worker.errors import PeerGoneError, PromptGoneError
from pic_worker.ports import Clock, Peers

log = structlog.get_logger()

# Beyond the simulated transfer, what a busy machine may add before a live peer counts as gone.
PULL_GRACE_S = 10.0


class DecodeService:
    """Tokens come from a fixed answer."""

    def __init__(
        self,
        *,
        worker_id: WorkerId,
        peers: Peers,
        link: Link,
        link_fit: LinkFit,
        step_cost: StepCost,
        clock: Clock,
        token_s: float,
        answer: FixedAnswer,
    ) -> None:
        self._worker_id = worker_id
        self._peers = peers
        self._link = link
        self._link_fit = link_fit
        self._step_cost = step_cost
        self._clock = clock
        self._token_s = token_s
        self._answer = answer

    async def obtain(self, handover: Handover | None, num_tokens: int) -> None:
        """Waits until the prompt's KV is here: from the prefill worker, or computed again in one step."""
        if handover is not None:
            try:
                await self.take_over(handover)
            except PromptGoneError as error:
                log.warning("prompt_recomputed", request_id=handover.request_id, reason=str(error))
            else:
                return
        await asyncio.sleep(self._step_cost.step_s(num_tokens, num_tokens * num_tokens / 2))

    async def take_over(self, handover: Handover) -> None:
        """Waits until the prompt's KV has arrived here.

        Raises:
            PromptGoneError: the prefill worker does not have it any more, or is gone.
        """
        request = PullPrompt(request_id=handover.request_id, from_worker=self._worker_id)
        try:
            pulled = await self._peers.pull_prompt(
                handover.prefill_worker_id, request, self._link_fit.transfer_s(handover.kv_bytes) + PULL_GRACE_S
            )
        except PeerGoneError as error:
            raise PromptGoneError(str(error)) from error
        if not pulled.found:
            raise PromptGoneError(f"worker {handover.prefill_worker_id} has dropped the prompt's KV")
        await self._until(self._link.receive(pulled.kv_bytes, self._clock()))

    async def tokens(self, *, num_before: int, num_tokens: int) -> AsyncIterator[int]:
        """The answer's tokens from number `num_before` on, one every `token_s`."""
        due_s = self._clock()
        for index in range(num_before, num_before + num_tokens):
            due_s += self._token_s
            await self._until(due_s)
            yield self._answer.token(index)

    async def _until(self, due_s: float) -> None:
        await asyncio.sleep(max(0.0, due_s - self._clock()))
