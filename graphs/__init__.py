"""What runs together, one file each: `dynamo serve graphs:NAME`."""

from graphs.dynamo_kv import GRAPH as dynamo_kv  # noqa: N811 -- the name that users type
from graphs.nebula import GRAPH as nebula  # noqa: N811 -- the name that users type

__all__ = ["dynamo_kv", "nebula"]
