"""Decode on vLLM: takes a prefilled prompt over by NIXL, then generates."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import structlog

from nebula_protocol.handover import Handover
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import PullPrompt
from nebula_protocol.tokens import TokenArray
from pic_worker.adapters.vllm.priorities import PROMPT_PRIORITY
from pic_worker.adapters.vllm.sampled import ERROR, TokenText, read_output
from pic_worker.errors import BadWorkError, PeerGoneError, PromptGoneError
from pic_worker.ports import Peers
from pic_worker.work import Sampled

if TYPE_CHECKING:
    # Takes seconds to import.
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput

log = structlog.get_logger()

_ANSWER_LIMIT_S = 10.0
"""A prefill worker answers at once, unless its machine is very busy."""


class Generator(Protocol):
    """What of the engine is needed here; `VllmEngine` has it."""

    def generate(
        self,
        request_id: str,
        token_ids: Sequence[int],
        params: "SamplingParams",
        *,
        cache_salt: str,
        priority: int,
    ) -> "AsyncGenerator[RequestOutput, None]": ...


class DecodeService:
    def __init__(
        self,
        *,
        worker_id: WorkerId,
        engine: Generator,
        peers: Peers,
        token_text: TokenText,
        first_token_limit_s: float,
    ) -> None:
        self._worker_id = worker_id
        self._engine = engine
        self._peers = peers
        self._token_text = token_text
        self._first_token_limit_s = first_token_limit_s
        self._background: set[asyncio.Task[None]] = set()

    async def decode(
        self, request_id: RequestId, tokens: TokenArray, params: "SamplingParams", handover: Handover
    ) -> AsyncGenerator[Sampled, None]:
        """The answer behind `tokens`.

        Raises:
            BadWorkError: vLLM refuses the request.
            PromptGoneError: the prompt's KV cannot be had.
        """
        await self._claim(handover)
        params.extra_args = {"kv_transfer_params": _transfer_params(handover)}
        outputs = self._engine.generate(
            request_id, tokens.tolist(), params, cache_salt=handover.lineage, priority=PROMPT_PRIORITY
        )
        is_first = True
        async with aclosing(outputs):
            while (output := await self._next(outputs, is_first=is_first, handover=handover)) is not None:
                sampled = read_output(output, self._token_text)
                if sampled.finish_reason == ERROR:
                    raise _load_error(handover) if is_first else RuntimeError("vLLM broke the answer off")
                if is_first:
                    self._tell_arrived(handover)
                    is_first = False
                if sampled.token_ids or sampled.finish_reason is not None:
                    yield sampled

    async def _next(
        self, outputs: "AsyncGenerator[RequestOutput, None]", *, is_first: bool, handover: Handover
    ) -> "RequestOutput | None":
        """None at the end."""
        limit_s = self._first_token_limit_s if is_first else None
        try:
            return await asyncio.wait_for(anext(outputs, None), limit_s)
        except TimeoutError as error:
            raise _load_error(handover) from error

    async def _claim(self, handover: Handover) -> None:
        """Asks the prefill worker whether it still has the prompt: of one that is gone, NIXL learns late."""
        if handover.kv_transfer_params is None:
            raise BadWorkError("the handover does not say how to fetch the prompt's KV")
        try:
            pulled = await self._peers.pull_prompt(
                handover.prefill_worker_id, self._pull(handover, has_arrived=False), _ANSWER_LIMIT_S
            )
        except PeerGoneError as error:
            raise PromptGoneError(str(error)) from error
        if not pulled.found:
            raise PromptGoneError(f"worker {handover.prefill_worker_id} has dropped the prompt's KV")

    def _tell_arrived(self, handover: Handover) -> None:
        task = asyncio.create_task(self._say_arrived(handover))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _say_arrived(self, handover: Handover) -> None:
        try:
            await self._peers.pull_prompt(
                handover.prefill_worker_id, self._pull(handover, has_arrived=True), _ANSWER_LIMIT_S
            )
        except PeerGoneError as error:
            # Nothing depends on it: a prefill worker that does not learn of it drains a little longer.
            log.info("arrival_not_told", request_id=handover.request_id, reason=str(error))

    def _pull(self, handover: Handover, *, has_arrived: bool) -> PullPrompt:
        return PullPrompt(request_id=handover.request_id, from_worker=self._worker_id, has_arrived=has_arrived)


def _transfer_params(handover: Handover) -> Mapping[str, object]:
    # Older versions of NIXL's connector do not say themselves how much there is.
    return {"remote_num_tokens": handover.prompt_tokens, **(handover.kv_transfer_params or {})}


def _load_error(handover: Handover) -> PromptGoneError:
    return PromptGoneError(f"the prompt's KV could not be fetched from worker {handover.prefill_worker_id}")
