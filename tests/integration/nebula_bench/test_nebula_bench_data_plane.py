"""The throughput benchmark of the data plane, small, over TCP."""

import pytest

from nebula_bench.data_plane.settings import ThroughputSettings
from nebula_bench.data_plane.throughput import PLAIN, Throughput, measure_throughput, throughput_measurements

pytestmark = pytest.mark.integration


async def test_each_kind_is_measured_as_often_and_on_as_many_bytes() -> None:
    settings = ThroughputSettings(
        transports=("tcp",), num_segments=2, segment_tokens=40, page_bytes=4096, num_repetitions=5
    )
    rounds: list[int] = []
    throughputs = await measure_throughput(settings, lambda: rounds.append(1))
    assert [one.kind for one in throughputs] == [PLAIN, "tcp"]
    # 40 tokens take 3 pages of 16, twice.
    assert {one.num_bytes for one in throughputs} == {6 * 4096}
    assert {len(one.durations_s) for one in throughputs} == {5}
    # One more, that does not count.
    assert len(rounds) == 6


def test_a_share_is_the_ratio_of_median_speeds() -> None:
    plain = Throughput(PLAIN, 1000, (1.0, 2.0, 9.0))
    quick, slow = Throughput("tcp", 1000, (2.5, 0.1, 9.0)), Throughput("nixl", 1000, (5.0, 5.0, 5.0))
    rows = {one.id: one for one in throughput_measurements((plain, quick, slow))}
    # Medians: 500, 400 and 200 bytes a second.
    assert (rows["tcp_share"].value, rows["tcp_share"].ok) == (0.8, True)
    assert (rows["nixl_share"].value, rows["nixl_share"].ok) == (0.4, False)
    assert rows["plain_bytes_per_s"].value == 500
