"""The workers of a scene as Dynamo sees them: registered instances that publish KV events. One process for all.

Run as `python -m nebula_bench.adapters.dynamo.scene_workers SPEC_JSON MODEL_FOLDER`. It prints the workers' ids as one
line of JSON, publishes every block whenever it reads a line, and ends when its input ends.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
from dynamo.llm import KvEventPublisher, ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime

from nebula_bench.decision.scene import SceneSpec, StoredChain, stored_chains

ENDPOINT = "nebula_bench.workers.generate"


@dataclass(frozen=True, slots=True)
class _Worker:
    worker_id: int
    publisher: KvEventPublisher
    serving: "asyncio.Future[None]"

    def publish(self, spec: SceneSpec, chains: tuple[StoredChain, ...]) -> None:
        for chain in chains:
            self.publisher.publish_stored(
                chain.tokens(spec).tolist(),
                [spec.block_size_tokens] * chain.num_blocks,
                list(chain.block_names()),
            )


async def _refuse(request: object, context: object) -> AsyncIterator[dict[str, object]]:
    """Nobody sends requests: only the choice of a worker is measured."""
    raise NotImplementedError("these workers only publish events")
    yield {}


async def _start_worker(spec: SceneSpec, model_folder: str) -> _Worker:
    # A runtime for each: a worker's id belongs to its runtime.
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint(ENDPOINT)
    await register_model(
        ModelInput.Tokens,
        ModelType.Completions,
        endpoint,
        model_folder,
        "scene",
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=spec.block_size_tokens,
    )
    return _Worker(
        worker_id=endpoint.connection_id(),
        publisher=KvEventPublisher(endpoint, kv_block_size=spec.block_size_tokens),
        serving=asyncio.ensure_future(endpoint.serve_endpoint(_refuse)),
    )


async def _run(spec: SceneSpec, model_folder: str) -> None:
    workers = [await _start_worker(spec, model_folder) for _ in range(spec.num_workers)]
    print(msgspec.json.encode([worker.worker_id for worker in workers]).decode(), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        for worker, chains in zip(workers, stored_chains(spec), strict=True):
            worker.publish(spec, chains)


if __name__ == "__main__":
    asyncio.run(_run(msgspec.json.decode(sys.argv[1], type=SceneSpec), sys.argv[2]))
