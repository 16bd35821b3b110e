"""Decode on an engine that fetches KV by itself: what it is told, and what becomes of requests whose KV is gone."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from msgspec import structs
from support.engine_world import EngineWorld, passage, unplanned
from support.fake_peers import FakePeers

from nebula_protocol.handover import Handover
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from nebula_protocol.messages import PeerReply, PeerRequest, PromptPulled, PullPrompt
from pic_worker.adapters.vllm.decode_service import DecodeService
from pic_worker.adapters.vllm.held_prompts import HeldPrompts
from pic_worker.errors import BadWorkError, PromptGoneError
from pic_worker.work import Sampled

PREFILL, OWN = WorkerId(1), WorkerId(2)
PROMPT = passage(1, 12)
HANDOVER = Handover(
    request_id=RequestId("r"),
    prefill_worker_id=PREFILL,
    epoch=WorkerEpoch(7),
    prompt_tokens=11,
    kv_bytes=110,
    receipt=EngineWorld().serve(unplanned("r", PROMPT)),
    lineage="exact/",
    kv_transfer_params={"remote_host": "h", "remote_block_ids": [[1, 2]]},
)


@dataclass
class Completion:
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: None = None


@dataclass
class Output:
    outputs: list[Completion]


@dataclass
class Params:
    extra_args: Any = None


@dataclass
class Engine:
    """Says what it is given, and remembers what it was asked."""

    says: Sequence[Completion] = ()
    hangs: bool = False
    asked: list[tuple[str, list[int], Any, str]] = field(default_factory=list)
    num_open: int = 0

    async def generate(
        self, request_id: str, token_ids: Sequence[int], params: Any, *, cache_salt: str, priority: int
    ) -> AsyncGenerator[Any, None]:
        self.asked.append((request_id, list(token_ids), params.extra_args, cache_salt))
        self.num_open += 1
        try:
            if self.hangs:
                await asyncio.Event().wait()
            for completion in self.says:
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


class World:
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

    def start(self, handover: Handover = HANDOVER) -> AsyncGenerator[Sampled, None]:
        return self.service.decode(RequestId("d"), PROMPT, cast("Any", Params()), handover)

    async def answer(self, handover: Handover = HANDOVER) -> list[Sampled]:
        return [piece async for piece in self.start(handover)]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_the_answer_comes_piece_by_piece_and_the_prefill_worker_learns_of_the_arrival() -> None:
    world = World(Engine([Completion([5]), Completion([6, 7]), Completion([], "stop")]))
    pieces = await world.answer()
    assert [piece.token_ids for piece in pieces] == [(5,), (6, 7), ()]
    assert [piece.finish_reason for piece in pieces] == [None, None, "stop"]
    await settle()
    assert world.prefill.calls == [False, True]
    assert world.prefill.held.count(now_s=0.0) == 0


async def test_the_engine_is_told_where_the_kv_is_and_how_much_and_under_which_lineage() -> None:
    world = World(Engine([Completion([5], "length")]))
    await world.answer()
    ((request_id, tokens, extra_args, salt),) = world.engine.asked
    assert (request_id, tokens, salt) == ("d", PROMPT.tolist(), "exact/")
    assert extra_args["kv_transfer_params"] == {
        "remote_host": "h",
        "remote_block_ids": [[1, 2]],
        "remote_num_tokens": 11,
    }


async def test_a_prompt_that_is_held_no_longer_is_gone_before_the_engine_is_asked() -> None:
    world = World(Engine([Completion([5], "length")]))
    world.prefill.held.end_transfer(HANDOVER.request_id)
    with pytest.raises(PromptGoneError):
        await world.answer()
    assert world.engine.asked == []


async def test_the_prompt_of_a_dead_prefill_worker_is_gone_at_once() -> None:
    world = World(Engine([Completion([5], "length")]))
    world.peers.leave(PREFILL)
    with pytest.raises(PromptGoneError, match="nobody is there"):
        await world.answer()
    assert world.engine.asked == []


async def test_a_load_that_fails_is_a_gone_prompt_and_no_token_is_said() -> None:
    world = World(Engine([Completion([], "error")]))
    with pytest.raises(PromptGoneError):
        await world.answer()
    assert world.engine.num_open == 0


async def test_an_error_behind_the_first_token_is_no_gone_prompt() -> None:
    world = World(Engine([Completion([5]), Completion([], "error")]))
    pieces = world.start()
    assert (await anext(pieces)).token_ids == (5,)
    with pytest.raises(RuntimeError, match="broke the answer off"):
        await anext(pieces)


async def test_a_load_without_end_is_given_up_and_the_engine_is_freed() -> None:
    world = World(Engine(hangs=True), first_token_limit_s=0.001)
    with pytest.raises(PromptGoneError):
        await world.answer()
    assert world.engine.num_open == 0


async def test_an_answer_that_is_closed_frees_the_engine() -> None:
    world = World(Engine([Completion([5]), Completion([6])]))
    pieces = world.start()
    await anext(pieces)
    await pieces.aclose()
    assert world.engine.num_open == 0


async def test_a_handover_of_another_engine_is_refused() -> None:
    world = World(Engine())
    with pytest.raises(BadWorkError):
        await world.answer(structs.replace(HANDOVER, kv_transfer_params=None))
    assert world.prefill.calls == []
