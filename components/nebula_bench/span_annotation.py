"""The annotation with which a client marks segments in a prompt of token ids."""

from collections.abc import Sequence

import msgspec

from nebula_bench.workload import Span
from nebula_protocol.annotations import PREFIX


def spans_annotation(spans: Sequence[Span]) -> str:
    return f"{PREFIX}spans={msgspec.json.encode(spans).decode()}"
