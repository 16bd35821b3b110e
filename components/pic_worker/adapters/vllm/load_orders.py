"""Claims as orders to the ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from pic_worker.adapters.vllm.orders import BlockLoad, ChunkOrder, Injection, LoadOrder, Selection
from pic_worker.core.claim import Claim
from pic_worker.core.load_queue import LoadChunk, Start
from pic_worker.core.recompute import Recompute


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """A claim made for a request that the engine may or may not find room for."""

    claim: Claim
    recompute: Recompute
    start: Start


def load_order(
    request_id: str, prompt: Sequence[int], block_ids: Sequence[int], block_size_tokens: int, load: PlannedLoad
) -> LoadOrder:
    claim, recompute = load.claim, load.recompute
    first_block = claim.start // block_size_tokens
    return LoadOrder(
        request_id=request_id,
        token_ids=tuple(prompt[: claim.end]),
        block_ids=tuple(block_ids),
        start=claim.start,
        end=claim.end,
        block_loads=tuple(
            BlockLoad(block.pages, block_ids[first_block + index]) for index, block in enumerate(claim.blocks)
        ),
        injections=tuple(
            Injection(use.stored.pages, use.stored.stored_position, use.skip_tokens, use.start, use.end)
            for use in claim.uses
        ),
        recompute=tuple((run.start, run.end) for run in recompute.runs),
        selection=Selection(recompute.selected_tokens) if recompute.selected_tokens else None,
    )


def chunk_order(chunk: LoadChunk) -> ChunkOrder:
    return ChunkOrder(chunk.request_id, chunk.first, chunk.num_tokens, chunk.is_last, chunk.is_over_steps)
