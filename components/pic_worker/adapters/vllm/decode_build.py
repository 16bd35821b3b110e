"""Puts a decode worker on vLLM together."""

import asyncio
from contextlib import AsyncExitStack

from nebula_protocol.ids import WorkerId
from pic_worker.adapters.nats.client import connect_worker
from pic_worker.adapters.nats.peers import NatsPeers
from pic_worker.adapters.prompt_cutting import load_tokenizer
from pic_worker.adapters.vllm.decode_service import DecodeService
from pic_worker.adapters.vllm.engine import VllmEngine
from pic_worker.adapters.vllm.sampled import token_text_of
from pic_worker.adapters.vllm.sockets import SocketFolder
from pic_worker.adapters.vllm.workers import VllmDecodeWorker
from pic_worker.settings import WorkerSettings


async def build_decode_worker(settings: WorkerSettings, worker_id: WorkerId, nats_url: str) -> VllmDecodeWorker:
    """
    Raises:
        StartError: a setting, the tokenizer or NATS is missing, or vLLM does not start.
    """
    tokenizer = load_tokenizer(settings)
    async with AsyncExitStack() as started:
        client = await connect_worker(nats_url, f"decode-{worker_id}")
        started.push_async_callback(client.close)
        sockets = SocketFolder.make()
        started.callback(sockets.remove)
        engine = await VllmEngine.start(settings, sockets)
        started.push_async_callback(engine.close)
        main_task = asyncio.create_task(engine.watch())
        started.callback(main_task.cancel)
        service = DecodeService(
            worker_id=worker_id,
            engine=engine,
            peers=NatsPeers(client, settings.pool_namespace),
            token_text=token_text_of(tokenizer),
            # After that the prefill worker has freed the KV.
            first_token_limit_s=settings.prompt_hold_s,
        )
        return VllmDecodeWorker(
            service=service,
            engine=engine,
            sampling_defaults=engine.sampling_defaults(),
            context_tokens=settings.context_tokens,
            main_task=main_task,
            started=started.pop_all(),
        )
