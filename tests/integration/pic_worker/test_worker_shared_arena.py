"""The ranks' arena and the data plane's view of it are the same memory."""

import pytest
import torch

from pic_worker.adapters.mapped_pages import MappedPages
from pic_worker.adapters.vllm.arena import Arena, PageShape
from pic_worker.core.arena_ids import Page

pytestmark = pytest.mark.integration

SHAPE = PageShape(num_layers=2, page_tokens=4, num_kv_heads=3, head_dim=8, dtype=torch.bfloat16)


def test_a_page_copied_by_bytes_is_read_as_the_same_keys_and_values() -> None:
    source, home = (Arena(SHAPE, 6, is_pinned=False) for _ in range(2))
    there, here = (MappedPages((arena.path,), SHAPE.num_bytes) for arena in (source, home))
    source_pages, home_pages = (Page(4), Page(1)), (Page(0), Page(5))
    # Six tokens: the second page is half full.
    keys, values = torch.randn(2, 6, 3, 8).to(torch.bfloat16)
    for layer in range(2):
        source.write(layer, source.rows_of(source_pages, 6), keys + layer, values - layer)
    for source_page, home_page in zip(source_pages, home_pages, strict=True):
        here.view(0, home_page, 1)[:] = there.view(0, source_page, 1)
    for layer in range(2):
        found_keys, found_values = home.read(layer, home.rows_of(home_pages, 6))
        assert torch.equal(found_keys, keys + layer)
        assert torch.equal(found_values, values - layer)
    for one in (there, here, source, home):
        one.close()
