"""Transfers of each transport beside the plain socket copy, as Markdown."""

from nebula_bench.data_plane.settings import ThroughputSettings
from nebula_bench.data_plane.throughput import PLAIN, Throughput
from nebula_bench.serving.markdown_table import markdown_table, number

_BYTES_PER_GB = 1e9
_BYTES_PER_MB = 1e6
_NAMES = {PLAIN: "plain socket copy", "tcp": "TCP", "nixl": "NIXL"}


def throughput_markdown(throughputs: tuple[Throughput, ...], settings: ThroughputSettings) -> str:
    plain = next(one for one in throughputs if one.kind == PLAIN)
    rows = [
        (
            _NAMES.get(one.kind, one.kind),
            number(one.bytes_per_s / _BYTES_PER_GB, 2),
            number(one.num_bytes / max(one.durations_s) / _BYTES_PER_GB, 2),
            number(one.num_bytes / min(one.durations_s) / _BYTES_PER_GB, 2),
            number(one.bytes_per_s / plain.bytes_per_s, 2),
        )
        for one in throughputs
    ]
    intro = (
        f"{settings.num_segments} segments of {settings.segment_tokens} tokens, "
        f"{settings.num_bytes / _BYTES_PER_MB:,.0f} MB in all, between two processes over loopback; "
        f"{settings.num_repetitions} transfers of each kind, in turn.\n"
    )
    header = ("", "median, GB/s", "slowest", "fastest", "against the plain copy")
    return "\n".join((intro, markdown_table(header, rows)))
