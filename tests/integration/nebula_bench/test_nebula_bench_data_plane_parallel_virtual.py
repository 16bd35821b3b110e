"""Cold prompts on a virtual cluster: where helpers pay."""

from nebula_bench.data_plane.parallel_prompts import (
    ALL_LINKS,
    FAST_LINKS,
    FAST_WHOLE_LINKS,
    SLOW_LINKS,
    SLOW_WHOLE_LINKS,
    cold_prompts,
)
from nebula_bench.data_plane.parallel_virtual import run_cold_prompts


def test_in_virtual_time_helpers_pay_on_fast_links_and_whole_copies_over_slow_ones_do_not() -> None:
    prompts = cold_prompts(1, sizes=(1024,))
    alone = run_cold_prompts(prompts, None)
    runs = {links: run_cold_prompts(prompts, links) for links in ALL_LINKS}
    assert alone.num_helpers(1024) == 0
    assert runs[FAST_LINKS].ttft_s(1024) < runs[FAST_WHOLE_LINKS].ttft_s(1024) < 0.6 * alone.ttft_s(1024)
    assert runs[SLOW_LINKS].ttft_s(1024) < alone.ttft_s(1024)
    assert runs[SLOW_WHOLE_LINKS].num_helpers(1024) == 0
