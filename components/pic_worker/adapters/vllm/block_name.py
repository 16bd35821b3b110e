"""How events name a block of vLLM's prefix cache."""

from vllm.v1.core.kv_cache_utils import BlockHash

from nebula_protocol.ids import EngineBlockHash
from pic_worker.core.host_entry import BlockName

_NAME_BYTES = 8


def block_name(block_hash: BlockHash | bytes) -> BlockName:
    """As vLLM's own KV events name it: by its last 64 bits, unless `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES` is off."""
    return BlockName(EngineBlockHash(int.from_bytes(block_hash[-_NAME_BYTES:], "big")), block_hash)
