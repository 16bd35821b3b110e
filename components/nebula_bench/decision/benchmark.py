"""Measures Nebula's decision beside Dynamo's: both are asked the same in turn, in one process."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nebula_bench.decision.measured_point import DecisionPoint
from nebula_bench.decision.nebula_subject import NebulaSubject
from nebula_bench.decision.planes import open_planes
from nebula_bench.decision.scene import SceneSpec, make_prompt
from nebula_bench.decision.settings import DecisionSettings
from nebula_bench.decision.timing import time_in_turn
from nebula_bench.errors import BenchError

if TYPE_CHECKING:
    from nebula_bench.adapters.dynamo.kv_router import DynamoSubject


async def measure_all(settings: DecisionSettings, model_folder: Path) -> tuple[DecisionPoint, ...]:
    """Every point that `measure_decisions` yields."""
    return tuple([point async for point in measure_decisions(settings, model_folder)])


async def measure_decisions(settings: DecisionSettings, model_folder: Path) -> AsyncIterator[DecisionPoint]:
    """One point after another, by workers and then by length.

    Raises:
        BenchError: a plane or the scene's workers do not start, or the two indices differ.
    """
    for num_workers in settings.workers:
        spec = SceneSpec(num_workers=num_workers, num_entries=settings.num_entries)
        async with open_planes():
            # Dynamo reads how to log when it is imported, and which planes to use when it starts: not before this.
            from nebula_bench.adapters.dynamo.kv_router import open_kv_router

            async with open_kv_router(spec, model_folder) as dynamo:
                nebula = NebulaSubject(spec, dynamo.worker_ids, model_folder)
                await _check_indices(spec, nebula, dynamo)
                for prompt_tokens in settings.prompt_tokens:
                    yield await _measure_point(settings, spec, nebula, dynamo, prompt_tokens)


async def _measure_point(
    settings: DecisionSettings, spec: SceneSpec, nebula: NebulaSubject, dynamo: "DynamoSubject", prompt_tokens: int
) -> DecisionPoint:
    prompt = make_prompt(spec, prompt_tokens)
    nebula.check(prompt)
    times = await time_in_turn(
        {
            "marked": partial(nebula.time_decision, prompt, marked=True),
            "dynamo_booking": partial(dynamo.time_booking, prompt),
            "unmarked": partial(nebula.time_decision, prompt, marked=False),
            "dynamo_query": partial(dynamo.time_query, prompt),
            "reading": partial(nebula.time_reading, prompt, marked=True),
        },
        num_repetitions=settings.num_repetitions,
        num_calls=settings.num_calls,
    )
    return DecisionPoint(
        num_workers=spec.num_workers,
        prompt_tokens=prompt_tokens,
        num_blocks=nebula.count_blocks(),
        num_segments=nebula.count_segments(),
        **times,
    )


async def _check_indices(spec: SceneSpec, nebula: NebulaSubject, dynamo: "DynamoSubject") -> None:
    counts = (nebula.count_blocks(), await dynamo.count_blocks())
    if counts != (spec.num_entries, spec.num_entries):
        raise BenchError(f"Nebula's index holds {counts[0]} blocks and Dynamo's {counts[1]}, not {spec.num_entries}")
