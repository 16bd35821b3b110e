"""Decode on vLLM: takes a prefilled prompt over by NIXL, then generates."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol

import structlog

from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import PullPrompt
from nebula_protocol.tokens import TokenArray
from pic_worker.adapters.vllm.priorities import PROMPT_PRIORITY
from pic_worker.adapters.vllm.sampled import ERROR, LENGTH, TokenText, read_output
from pic_worker.errors import BadWorkError, PeerGoneError, PromptGoneError
from pic_worker.ports import Peers

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
        self,
        request_id: RequestId,
        tokens: TokenArray,
        params: "SamplingParams",
        handover: Handover | None,
        *,
        own_lineage: str,
    ) -> AsyncGenerator[Sampled, None]:
        """The answer behind `tokens`. Where the prompt's KV cannot be had, this engine computes it.

        Args:
            own_lineage: Under which prefix blocks are cached of a prompt that came without a handover.

        Raises:
            BadWorkError: vLLM refuses the request, or the handover is another engine's.
        """
        if handover is not None:
            try:
                async with aclosing(self._taken_over(request_id, tokens, params, handover)) as pieces:
                    async for piece in pieces:
                        yield piece
            except PromptGoneError as error:
                # Raised only before the first piece.
                log.warning("prompt_recomputed", request_id=handover.request_id, reason=str(error))
            else:
                return
        params.extra_args = None
        salt = own_lineage if handover is None else handover.lineage
        # Of another name: vLLM may not have forgotten the first one yet.
        again_id = request_id if handover is None else RequestId(f"{request_id}~again")
        outputs = self._engine.generate(again_id, tokens.tolist(), params, cache_salt=salt, priority=PROMPT_PRIORITY)
        async with aclosing(outputs):
            async for output in outputs:
                sampled = read_output(output, self._token_text)
                if sampled.finish_reason == ERROR:
                    raise RuntimeError("vLLM broke the answer off")
                if sampled.token_ids or sampled.finish_reason is not None:
                    yield sampled

    def release(self, request_id: RequestId, tokens: TokenArray, handover: Handover) -> None:
        """Frees the prompt's KV at its prefill worker, for an answer that needs no decode: by pulling it, since vLLM
        knows no other way. Nobody has to wait for it."""
        if handover.first is not None and handover.first.finish_reason == LENGTH:
            self._in_background(self._pull_for_nothing(request_id, tokens, handover))

    async def _pull_for_nothing(self, request_id: RequestId, tokens: TokenArray, handover: Handover) -> None:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        try:
            async with aclosing(self._taken_over(request_id, tokens, params, handover)) as pieces:
                async for _ in pieces:
                    pass
        except (PromptGoneError, RuntimeError) as error:
            log.info("prompt_not_released", request_id=handover.request_id, reason=str(error))

    async def _taken_over(
        self, request_id: RequestId, tokens: TokenArray, params: "SamplingParams", handover: Handover
    ) -> AsyncGenerator[Sampled, None]:
        """
        Raises:
            PromptGoneError: the prompt's KV cannot be had; before the first piece.
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
                    self._in_background(self._say_arrived(handover))
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

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
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
