"""Builds a worker on the engine that the settings name."""

from nebula_protocol.ids import WorkerId
from pic_worker.adapters.sim.build import build_decode as build_sim_decode
from pic_worker.adapters.sim.build import build_prefill as build_sim_prefill
from pic_worker.ports import BlockEvents, DecodeWorker, PrefillWorker
from pic_worker.prompt_cutter import SaltedHasher
from pic_worker.settings import WorkerSettings


async def build_prefill(
    settings: WorkerSettings,
    worker_id: WorkerId,
    nats_url: str,
    *,
    block_events: BlockEvents,
    hash_salted: SaltedHasher,
) -> PrefillWorker:
    """A running prefill worker, reachable by its peers.

    Raises:
        StartError: a setting, the model or NATS is missing, or the engine does not start.
    """
    match settings.engine:
        case "sim":
            return await build_sim_prefill(
                settings, worker_id, nats_url, block_events=block_events, hash_salted=hash_salted
            )
        case "vllm":
            # Here, since vLLM takes seconds to import and is not installed everywhere.
            from pic_worker.adapters.vllm.build import build_prefill as build_vllm_prefill

            return await build_vllm_prefill(
                settings, worker_id, nats_url, block_events=block_events, hash_salted=hash_salted
            )


async def build_decode(settings: WorkerSettings, worker_id: WorkerId, nats_url: str) -> DecodeWorker:
    """A running decode worker.

    Raises:
        StartError: as for `build_prefill`.
    """
    match settings.engine:
        case "sim":
            return await build_sim_decode(settings, worker_id, nats_url)
        case "vllm":
            from pic_worker.adapters.vllm.build import build_decode as build_vllm_decode

            return await build_vllm_decode(settings, worker_id, nats_url)
