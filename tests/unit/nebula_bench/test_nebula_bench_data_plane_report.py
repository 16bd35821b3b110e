from nebula_bench.data_plane.settings import ThroughputSettings
from nebula_bench.data_plane.throughput import PLAIN, Throughput
from nebula_bench.data_plane.throughput_report import throughput_markdown


def test_transports_stand_beside_the_plain_copy() -> None:
    plain = Throughput(PLAIN, 4_000_000_000, (1.0, 2.0, 4.0))
    tcp = Throughput("tcp", 4_000_000_000, (2.0, 4.0, 8.0))
    lines = throughput_markdown((plain, tcp), ThroughputSettings()).splitlines()
    # 4 GB in a median of 2 s and of 4 s.
    assert "| plain socket copy | 2.00 | 1.00 | 4.00 | 1.00 |" in lines
    assert "| TCP | 1.00 | 0.50 | 2.00 | 0.50 |" in lines
    # 8 segments of 512 / 16 = 32 pages of 368,640 bytes.
    assert lines[0].startswith("8 segments of 512 tokens, 94 MB in all")
