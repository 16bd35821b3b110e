"""A vLLM prefill worker and a vLLM decode worker with a tiny model: whole answers, across both."""

import re
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.hashing import HashArray, hash_blocks
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.tokens import TokenArray, as_token_array
from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.adapters.engines import build_decode, build_prefill
from pic_worker.core.effects import DeviceEvent
from pic_worker.ports import DecodeWorker, PrefillWorker
from pic_worker.settings import WorkerSettings
from pic_worker.work import WorkRequest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

BLOCK = 32
PROMPT = as_token_array([20 + 7 * index % 900 for index in range(100)])
NUM_ANSWER_TOKENS = 8
DIGITS = "[0-9]{3,40}"


class NoBlockEvents:
    def publish(self, event: DeviceEvent) -> None:
        pass


def salted(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    # Nobody routes by these names here.
    return hash_blocks(tokens, block_size_tokens)


def settings_of(role: str, model: Path, namespace: str) -> WorkerSettings:
    return WorkerSettings.model_validate(
        {
            "role": role,
            "engine": "vllm",
            "namespace": namespace,
            "model_path": str(model),
            "model_name": "tiny",
            "block_size_tokens": BLOCK,
            "context_tokens": 1024,
            "device_capacity_tokens": 4096,
            "store_capacity_tokens": 1024,
            "max_step_tokens": 512,
            "max_running": 4,
            "pic": False,
            "cut": {"content_chunks": False},
            "vllm": {"cpu_threads": 1, "enforce_eager": True},
        }
    )


class Stages:
    """The two workers that answer a prompt one after the other."""

    def __init__(self, prefill: PrefillWorker, decode: DecodeWorker) -> None:
        self._prefill, self._decode = prefill, decode
        self._numbers = count()

    async def prefill(self, work: WorkRequest) -> Handover:
        return await self._prefill.prefill(self._new_id(), work)

    async def decode(self, work: WorkRequest, handover: Handover | None) -> list[Sampled]:
        return [piece async for piece in self._decode.decode(self._new_id(), work, handover)]

    def _new_id(self) -> RequestId:
        return RequestId(f"request-{next(self._numbers)}")


def asking(max_tokens: int = NUM_ANSWER_TOKENS, **sampling: object) -> WorkRequest:
    body: dict[str, object] = {
        "token_ids": PROMPT.tolist(),
        "sampling_options": {"temperature": 0.0, **sampling},
        "stop_conditions": {"ignore_eos": True},
    }
    return WorkRequest(PROMPT, max_tokens, RequestOptions(), None, None, body)


def tokens_of(pieces: list[Sampled]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stages(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stages]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    pytest.importorskip("nixl._api", reason="NIXL is not installed")
    from pic_worker.adapters.vllm.tiny_model import write_tiny_model

    model, namespace = tmp_path_factory.mktemp("tiny"), uuid4().hex
    write_tiny_model(model, tokenizer_folder=packaged_folder())
    prefill = await build_prefill(
        settings_of("prefill", model, namespace),
        WorkerId(21),
        nats_url,
        block_events=NoBlockEvents(),
        hash_salted=salted,
    )
    try:
        decode = await build_decode(settings_of("decode", model, namespace), WorkerId(22), nats_url)
        try:
            yield Stages(prefill, decode)
        finally:
            await decode.close()
    finally:
        await prefill.close()


async def test_decode_goes_on_behind_the_token_of_prefill_as_one_engine_would(stages: Stages) -> None:
    work = asking()
    handover = await stages.prefill(work)
    pieces = await stages.decode(work, handover)
    assert handover.first is not None
    assert pieces[0].token_ids == handover.first.token_ids
    assert len(tokens_of(pieces)) == NUM_ANSWER_TOKENS
    assert tokens_of(pieces) == tokens_of(await stages.decode(work, None))


async def test_a_prompt_that_was_taken_over_already_is_computed_with_the_same_answer(stages: Stages) -> None:
    work = asking()
    handover = await stages.prefill(work)
    taken_over = tokens_of(await stages.decode(work, handover))
    assert tokens_of(await stages.decode(work, handover)) == taken_over


async def test_a_grammar_holds_from_the_first_token_to_the_last_across_both_workers(stages: Stages) -> None:
    work = asking(guided_decoding={"regex": DIGITS})
    handover = await stages.prefill(work)
    token_ids = tokens_of(await stages.decode(work, handover))
    tokenizer = Tokenizer.from_file(str(packaged_folder() / "tokenizer.json"))
    text = tokenizer.decode(token_ids)
    assert re.fullmatch(DIGITS, text), text
    # The answer that the decode worker would have given alone.
    assert token_ids == tokens_of(await stages.decode(work, None))


async def test_a_grammar_that_is_none_is_refused_and_the_workers_live_on(stages: Stages) -> None:
    from pic_worker.errors import BadWorkError

    with pytest.raises(BadWorkError):
        await stages.prefill(asking(guided_decoding={"regex": "[0-9"}))
    assert (await stages.prefill(asking())).first is not None


async def test_an_answer_of_one_token_is_that_of_prefill(stages: Stages) -> None:
    work = asking(max_tokens=1)
    handover = await stages.prefill(work)
    assert handover.first is not None
    assert await stages.decode(work, handover) == [handover.first]
