"""Small traces in the form of the real ones."""

import random
from collections.abc import Sequence

from nebula_bench.workload import TraceRequest, TraceSegment


def request(index: int, *segments: tuple[str, int], session: str = "s") -> TraceRequest:
    """Of (id, tokens) pairs; equal ids are equal content."""
    return TraceRequest(
        workload="small",
        index=index,
        session=session,
        segments=tuple(TraceSegment("part", name, tokens) for name, tokens in segments),
    )


def retrieval_trace(num_requests: int, seed: int = 0) -> tuple[TraceRequest, ...]:
    """A system prompt, three of thirty passages in any order, and a question of its own."""
    rng = random.Random(seed)
    return tuple(
        request(
            index,
            ("system", 256),
            *((f"passage-{number}", 200 + 8 * number) for number in rng.sample(range(30), 3)),
            (f"question-{index}", 24),
        )
        for index in range(num_requests)
    )


def dialog_trace(num_sessions: int, num_turns: int) -> tuple[TraceRequest, ...]:
    """Turn after turn of every session; a prompt is all that was said before."""
    requests: list[TraceRequest] = []
    for turn in range(num_turns):
        for session in range(num_sessions):
            said: Sequence[tuple[str, int]] = [(f"{session}/{at}", 180) for at in range(turn + 1)]
            requests.append(request(len(requests), ("system", 512), *said, session=str(session)))
    return tuple(requests)
