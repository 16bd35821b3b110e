"""A rank half beside the tiny engine, with what tests need to give it orders and to look at what became of the KV."""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.tiny_engine import BLOCK_TOKENS, PAGE_TOKENS, STORE_PAGES, TinyEngine

from pic_worker.core.arena_ids import Page, SaveId

if TYPE_CHECKING:
    from pic_worker.adapters.vllm.bound_rank import BoundRank
    from pic_worker.adapters.vllm.rank_half import RankHalf

LayerKv = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values, each [tokens, heads, dimension], of each layer."""

_VOCABULARY = 8192


class RankWorld:
    """Blocks and pages are handed out once each; the engine's own requests take blocks from the other end."""

    def __init__(self, engine: TinyEngine, half: "RankHalf") -> None:
        self.engine = engine
        self.half = half
        self._next_block = engine.kv_cache_config.num_blocks
        self._next_page = 0
        self._numbers = count()

    @property
    def bound(self) -> "BoundRank":
        return self.half._bound

    def blocks(self, num_tokens: int) -> tuple[int, ...]:
        """A block table in no order, as a long-running pool gives them out."""
        num_blocks = -(-num_tokens // BLOCK_TOKENS)
        self._next_block -= num_blocks
        blocks = list(range(self._next_block, self._next_block + num_blocks))
        Random(num_tokens).shuffle(blocks)
        return tuple(blocks)

    def pages(self, num_tokens: int) -> tuple[Page, ...]:
        num_pages = -(-num_tokens // PAGE_TOKENS)
        pages = [Page((self._next_page + index) % STORE_PAGES) for index in range(num_pages)]
        self._next_page += num_pages
        Random(num_tokens).shuffle(pages)
        return tuple(pages)

    def name(self) -> str:
        return f"load-{next(self._numbers)}"

    def save_id(self) -> SaveId:
        return SaveId(next(self._numbers))

    def kv(self, blocks: Sequence[int], start: int, end: int) -> LayerKv:
        kv = self.bound.kv
        return [kv.read(layer, blocks, start, end) for layer in range(kv.num_layers)]

    def random_kv(self, num_tokens: int, seed: int) -> LayerKv:
        kv = self.bound.kv
        generator = torch.Generator().manual_seed(seed)
        shape = (2, num_tokens, kv.shape.num_kv_heads, kv.shape.head_dim)
        halves = [torch.randn(shape, generator=generator).to(kv.dtype) for _ in range(kv.num_layers)]
        return [(half[0], half[1]) for half in halves]

    def write(self, blocks: Sequence[int], start: int, layers: LayerKv) -> None:
        kv = self.bound.kv
        slots = kv.slots_of(blocks, torch.arange(start, start + len(layers[0][0])))
        for layer, (keys, values) in enumerate(layers):
            kv.write(layer, slots, keys, values)


def tokens(num_tokens: int, seed: int) -> list[int]:
    return Random(seed).choices(range(3, _VOCABULARY), k=num_tokens)


def are_equal(found: LayerKv, expected: LayerKv) -> bool:
    """Bit for bit."""
    return all(
        torch.equal(keys.view(torch.int16), wanted_keys.view(torch.int16))
        and torch.equal(values.view(torch.int16), wanted_values.view(torch.int16))
        for (keys, values), (wanted_keys, wanted_values) in zip(found, expected, strict=True)
    )


def largest_error(found: LayerKv, expected: LayerKv) -> float:
    """Of a token in a layer: the length of the difference by the length of what was expected."""
    pairs = [pair for layer in zip(found, expected, strict=True) for pair in zip(*layer, strict=True)]
    errors = [_token_norms(one.float() - other.float()) / _token_norms(other.float()) for one, other in pairs]
    return float(torch.cat(errors).max())


def _token_norms(values: torch.Tensor) -> torch.Tensor:
    return values.flatten(1).square().sum(dim=1).sqrt()


def new_rank_half(engine: TinyEngine, **settings: Any) -> "RankHalf":
    from pic_worker.adapters.vllm.engine_wire import ConnectorSettings
    from pic_worker.adapters.vllm.rank_half import RankHalf

    connector_settings = ConnectorSettings(
        news_url="ipc://unused",
        control_url="ipc://unused",
        store_capacity_tokens=STORE_PAGES * PAGE_TOKENS,
        prefix_ratio=0.5,
        page_tokens=PAGE_TOKENS,
        **settings,
    )
    half = RankHalf(engine.vllm_config, engine.kv_cache_config, connector_settings)
    half.register_kv_caches(engine.caches)
    return half


@pytest.fixture(scope="module")
def rank_world(tiny_engine: TinyEngine) -> Iterator[RankWorld]:
    half = new_rank_half(tiny_engine)
    half.bind_runner(tiny_engine.runner)
    yield RankWorld(tiny_engine, half)
    half.shutdown()
