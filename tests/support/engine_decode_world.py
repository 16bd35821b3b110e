"""Decode on an engine that says what it is given, beside a prefill worker that holds one prompt."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from support.engine_world import EngineWorld, passage, unplanned
from support.fake_peers import FakePeers

from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from nebula_protocol.messages import PeerReply, PeerRequest, PromptPulled, PullPrompt
from pic_worker.adapters.vllm.decode_service import DecodeService
from pic_worker.adapters.vllm.held_prompts import HeldPrompts

PREFILL, OWN = WorkerId(1), WorkerId(2)
PROMPT = passage(1, 12)
HANDOVER = Handover(
    request_id=RequestId("r"),
    prefill_worker_id=PREFILL,
    epoch=WorkerEpoch(7),
    prompt_tokens=11,
    kv_bytes=110,
    receipt=EngineWorld().serve(unplanned("r", PROMPT)),
    first=Sampled((5,), "length"),
    lineage="exact/",
    kv_transfer_params={"remote_host": "h", "remote_block_ids": [[1, 2]]},
)


@dataclass
class Completion:
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: None = None


FAILED = Completion([], "error")


@dataclass
class Output:
    outputs: list[Completion]


@dataclass
class Params:
    extra_args: Any = None


@dataclass
class Engine:
    """Says what it is given, and remembers what it was asked. Of the first questions, some hang or fail to load."""

    says: Sequence[Completion] = ()
    num_hanging: int = 0
    num_failing: int = 0
    asked: list[tuple[str, list[int], Any, str]] = field(default_factory=list)
    params: list[Any] = field(default_factory=list)
    num_open: int = 0

    async def generate(
        self, request_id: str, token_ids: Sequence[int], params: Any, *, cache_salt: str, priority: int
    ) -> AsyncGenerator[Any, None]:
        self.asked.append((request_id, list(token_ids), params.extra_args, cache_salt))
        self.params.append(params)
        self.num_open += 1
        try:
            if len(self.asked) <= self.num_hanging:
                await asyncio.Event().wait()
            for completion in [FAILED] if len(self.asked) <= self.num_failing else self.says:
                yield Output([completion])
        finally:
            self.num_open -= 1


class Prefill:
    """The prefill worker's side: it holds the prompt."""

    def __init__(self) -> None:
        self.held = HeldPrompts(hold_s=60.0)
        self.held.hold(HANDOVER.request_id, 11, now_s=0.0)
        self.calls: list[bool] = []

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        assert isinstance(request, PullPrompt)
        self.calls.append(request.has_arrived)
        if request.has_arrived:
            num_tokens = self.held.end_transfer(request.request_id)
        else:
            num_tokens = self.held.begin_transfer(request.request_id, now_s=0.0)
        return PromptPulled(found=num_tokens > 0, kv_bytes=num_tokens)


ENDED, SAID = Completion([5], "length"), Sampled((5,), "length")


class DecodeWorld:
    def __init__(self, engine: Engine, first_token_limit_s: float = 5.0) -> None:
        self.engine, self.peers, self.prefill = engine, FakePeers(), Prefill()
        self.peers.join(PREFILL, self.prefill)
        self.service = DecodeService(
            worker_id=OWN,
            engine=engine,
            peers=self.peers,
            token_text=str,
            first_token_limit_s=first_token_limit_s,
        )

    def start(self, handover: Handover | None = HANDOVER) -> AsyncGenerator[Sampled, None]:
        return self.service.decode(RequestId("d"), PROMPT, cast("Any", Params()), handover, own_lineage="decoded/")

    async def answer(self, handover: Handover | None = HANDOVER) -> list[Sampled]:
        return [piece async for piece in self.start(handover)]

    def assert_computed_here(self, *, num_asked: int, salt: str = HANDOVER.lineage) -> None:
        """The last question of so many was for the whole prompt's KV, which does not come from elsewhere."""
        assert len(self.engine.asked) == num_asked
        _, tokens, extra_args, cache_salt = self.engine.asked[-1]
        assert (tokens, extra_args, cache_salt) == (PROMPT.tolist(), None, salt)
        assert self.engine.num_open == 0


async def settle() -> None:
    """Lets what goes on in the background end."""
    for _ in range(10):
        await asyncio.sleep(0)
