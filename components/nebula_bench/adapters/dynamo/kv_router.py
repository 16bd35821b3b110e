"""Dynamo's own KV router in this process, on the workers and blocks of a scene."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from dynamo.llm import KvRouter, KvRouterConfig
from dynamo.runtime import DistributedRuntime

from nebula_bench.adapters.dynamo import scene_workers
from nebula_bench.decision.scene import ScenePrompt, SceneSpec
from nebula_bench.decision.timing import Stopwatch
from nebula_bench.errors import BenchError
from nebula_protocol.events import WorkerKvEvent
from nebula_protocol.ids import WorkerId

_DEADLINE_S = 60.0
_POLL_S = 0.1
_PUBLISH_AGAIN_S = 3.0
_DUMP = msgspec.json.Decoder(tuple[WorkerKvEvent, ...])


class DynamoSubject:
    """`KvRouter.best_worker` as Python callers of Dynamo use it."""

    def __init__(self, router: KvRouter, worker_ids: tuple[WorkerId, ...]) -> None:
        self._router = router
        self._request_ids = map(str, itertools.count())
        self.worker_ids = worker_ids
        """In the order of the scene's workers."""

    async def time_booking(self, prompt: ScenePrompt) -> float:
        """Seconds for choosing a worker and booking the request on it; then it is taken back.

        Raises:
            BenchError: it found another prefix than the scene holds, so it was not asked the same question.
        """
        request_id = next(self._request_ids)
        with Stopwatch() as watch:
            worker_id, _, overlap_blocks = await self._router.best_worker(prompt.token_ids, request_id=request_id)
        await self._router.mark_prefill_complete(request_id)
        await self._router.free(request_id)
        if (worker_id, overlap_blocks) != (self.worker_ids[0], prompt.prefix_blocks):
            raise BenchError(f"Dynamo's router found {overlap_blocks} of {prompt.prefix_blocks} blocks")
        return watch.seconds

    async def time_query(self, prompt: ScenePrompt) -> float:
        """Seconds for choosing alone, without booking."""
        with Stopwatch() as watch:
            await self._router.best_worker(prompt.token_ids)
        return watch.seconds

    async def count_blocks(self) -> int:
        """Blocks in its index, over all workers."""
        events = _DUMP.decode(await self._router.dump_events())
        stored = (one.event.data.stored for one in events if one.event.data != "cleared")
        return sum(len(blocks.blocks) for blocks in stored if blocks is not None)


@asynccontextmanager
async def open_kv_router(spec: SceneSpec, model_folder: Path) -> AsyncIterator[DynamoSubject]:
    """A router that knows all that the scene's workers hold; these are a process of their own.

    The planes are those that this process's environment names.

    Raises:
        BenchError: the workers do not start, or the router does not learn of their blocks in time.
    """
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    workers = await _start_workers(spec, model_folder)
    try:
        subject = await _introduce(runtime, spec, workers)
        yield subject
    finally:
        if workers.returncode is None:
            workers.kill()
            await workers.wait()
        runtime.shutdown()


async def _start_workers(spec: SceneSpec, model_folder: Path) -> asyncio.subprocess.Process:
    encoded = msgspec.json.encode(spec).decode()
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", scene_workers.__name__, encoded, str(model_folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def _introduce(
    runtime: DistributedRuntime, spec: SceneSpec, workers: asyncio.subprocess.Process
) -> DynamoSubject:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            worker_ids = await _read_worker_ids(workers)
            endpoint = runtime.endpoint(scene_workers.ENDPOINT)
            client = await endpoint.client()
            while set(client.instance_ids()) != set(worker_ids):
                await asyncio.sleep(_POLL_S)
            subject = DynamoSubject(KvRouter(endpoint, spec.block_size_tokens, KvRouterConfig()), worker_ids)
            while not await _publish(subject, spec, workers):
                # What was published before the router listened is lost; the same blocks once more change nothing else.
                continue
            return subject
    except TimeoutError as error:
        raise BenchError(f"Dynamo's router did not learn of the scene within {_DEADLINE_S:g} s") from error


async def _read_worker_ids(workers: asyncio.subprocess.Process) -> tuple[WorkerId, ...]:
    line = b"" if workers.stdout is None else await workers.stdout.readline()
    if not line:
        raise BenchError("the scene's workers did not start")
    return tuple(map(WorkerId, msgspec.json.decode(line, type=list[int])))


async def _publish(subject: DynamoSubject, spec: SceneSpec, workers: asyncio.subprocess.Process) -> bool:
    """Whether the router has all blocks soon after they were published."""
    if workers.stdin is None:
        raise BenchError("the scene's workers take no input")
    workers.stdin.write(b"publish\n")
    await workers.stdin.drain()
    for _ in range(round(_PUBLISH_AGAIN_S / _POLL_S)):
        if await subject.count_blocks() == spec.num_entries:
            return True
        await asyncio.sleep(_POLL_S)
    return False
