"""Pages that lie side by side are copied as one piece."""

from collections.abc import Sequence
from typing import NamedTuple

from pic_worker.core.arena_ids import Page


class PageRun(NamedTuple):
    first: Page
    num_pages: int


class CopyRun(NamedTuple):
    """Pages side by side at both ends."""

    source_first: Page
    home_first: Page
    num_pages: int


def page_runs(pages: Sequence[Page]) -> list[PageRun]:
    """The pages in their order, those that follow each other joined. O(pages)."""
    runs: list[PageRun] = []
    for page in pages:
        if runs and page == runs[-1].first + runs[-1].num_pages:
            runs[-1] = PageRun(runs[-1].first, runs[-1].num_pages + 1)
        else:
            runs.append(PageRun(page, 1))
    return runs


def copy_runs(source_pages: Sequence[Page], home_pages: Sequence[Page]) -> list[CopyRun]:
    """Which pieces go where. O(pages).

    Raises:
        ValueError: not the same number of pages.
    """
    runs: list[CopyRun] = []
    for source, home in zip(source_pages, home_pages, strict=True):
        last = runs[-1] if runs else None
        if last and (source, home) == (last.source_first + last.num_pages, last.home_first + last.num_pages):
            runs[-1] = CopyRun(last.source_first, last.home_first, last.num_pages + 1)
        else:
            runs.append(CopyRun(source, home, 1))
    return runs
