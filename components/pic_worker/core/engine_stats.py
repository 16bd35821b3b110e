"""What the engine holds and does at one moment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges of one moment."""

    num_waiting: int
    num_running: int
    num_helpers: int
    num_held: int
    """Prompts that wait to be pulled."""
    num_segments_in_flight: int
    """Segments that live requests here will store."""
    device_held_blocks: int
    device_cached_blocks: int
    store_prefix_tokens: int
    store_segment_tokens: int
    store_pinned_tokens: int
