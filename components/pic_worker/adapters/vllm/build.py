"""The way in to vLLM: sets its environment, and only then imports it."""

from pathlib import Path

from nebula_protocol.ids import WorkerId
from pic_worker.adapters.vllm.environment import prepare_environment
from pic_worker.adapters.vllm.refusals import pic_refusals, read_model_config
from pic_worker.errors import StartError
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
        StartError: a setting, the model or NATS is missing, PIC cannot work with the model, or vLLM does not start.
    """
    if settings.pic:
        refusals = pic_refusals(read_model_config(Path(settings.model_path)), settings.vllm.engine_args)
        if refusals:
            raise StartError("\n".join(refusals))
    _prepare(settings)
    from pic_worker.adapters.vllm.prefill_build import build_prefill_worker

    return await build_prefill_worker(settings, worker_id, nats_url, block_events=block_events, hash_salted=hash_salted)


async def build_decode(settings: WorkerSettings, worker_id: WorkerId, nats_url: str) -> DecodeWorker:
    """A running decode worker.

    Raises:
        StartError: a setting, the model or NATS is missing, or vLLM does not start.
    """
    _prepare(settings)
    from pic_worker.adapters.vllm.decode_build import build_decode_worker

    return await build_decode_worker(settings, worker_id, nats_url)


def _prepare(settings: WorkerSettings) -> None:
    if not (Path(settings.model_path) / "config.json").is_file():
        raise StartError(f"there is no model in {settings.model_path!r}: config.json is missing")
    prepare_environment(settings)
