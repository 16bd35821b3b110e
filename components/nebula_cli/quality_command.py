"""`nebula bench quality`: how close answers from reused KV are to those of full prefill."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nebula_bench.provenance import describe_commit
from nebula_cli.checked_settings import make_settings
from nebula_cli.errors import CliError
from nebula_cli.origin import origin_sentence
from nebula_cli.results_file import write_measurements

if TYPE_CHECKING:
    from nebula_bench.quality.journal import Journal
    from nebula_bench.quality.outcome import PromptOutcome
    from nebula_bench.quality.prompts import QualityPrompt
    from nebula_bench.quality.settings import QualitySettings
    from nebula_bench.results import Measurement

_MISSED_EXIT_CODE = 1
_INTERRUPTED_EXIT_CODE = 130
_DEFAULT_MODEL = Path("models/SmolLM2-135M-Instruct")
_DEFAULT_PASSAGES = Path("../shared/data/passages.jsonl.gz")
_LINES_OF_PROGRESS = 20
"""Where there is no terminal to draw a bar on."""


def quality(
    model: Annotated[Path, typer.Option(help="Folder of the model; `make model` makes the default.")] = _DEFAULT_MODEL,
    passages: Annotated[
        Path, typer.Option(help="Texts for the prompts: .jsonl.gz with id and text.")
    ] = _DEFAULT_PASSAGES,
    prompts: Annotated[int, typer.Option(help="Prompts over all seeds.")] = 100,
    seeds: Annotated[
        list[int] | None, typer.Option(help="Of the prompts; several allowed.", show_default="1, 2")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Measure at most N more prompts now; the rest waits.", show_default="all")
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32.")] = "auto",
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)] = None,
    summary: Annotated[Path | None, typer.Option(help="Write all figures to this file.", show_default=False)] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for the page and its plot.", show_default=False)] = None,
    journal: Annotated[
        Path, typer.Option(help="Outcomes as they come; a run of the same code and settings goes on with them.")
    ] = Path("benchmarks/out/quality.jsonl"),
) -> None:
    """Compare reused KV with full prefill on real passages: by fusion method, computed alone or in another context.

    Runs vLLM in this process on all cores; about 20 minutes for the default on two. Exit code 1: a bar was missed.
    """
    from nebula_bench.adapters.vllm.environment import prepare_environment
    from nebula_bench.quality.settings import QualitySettings

    settings = make_settings(
        QualitySettings,
        model=model,
        passages=passages,
        num_prompts=prompts,
        seeds=tuple(seeds or (1, 2)),
        dtype=dtype,
    )
    if not (model / "config.json").is_file():
        raise CliError(f"no model in {model}; `make model` makes the default, --model names another")
    prepare_environment()
    kept, waiting = _open(settings, journal, limit)
    try:
        _measure(settings, waiting, kept)
    except KeyboardInterrupt:
        print(f"nebula: {len(kept.outcomes)} prompts are kept in {journal}; the same command goes on", file=sys.stderr)
        raise typer.Exit(_INTERRUPTED_EXIT_CODE) from None
    measurements = _publish(settings, list(kept.outcomes.values()), results, summary, report)
    missed = [one for one in measurements if not one.ok and one.bar is not None]
    for one in missed:
        print(f"nebula: {one.id} is {one.value:g}, not {one.bar.op} {one.bar.value:g}", file=sys.stderr)  # type: ignore[union-attr]
    raise typer.Exit(_MISSED_EXIT_CODE if missed else 0)


def _open(settings: "QualitySettings", journal: Path, limit: int | None) -> tuple["Journal", Sequence["QualityPrompt"]]:
    from nebula_bench.adapters.vllm.chat_frame import read_chat
    from nebula_bench.quality.benchmark import journal_key, missing_prompts
    from nebula_bench.quality.journal import Journal
    from nebula_bench.quality.passages import read_passages
    from nebula_bench.quality.prompts import make_prompts

    frame, encode = read_chat(settings.model)
    texts = read_passages(settings.passages, encode, settings.min_segment_tokens)
    prompts = make_prompts(settings, texts, frame, encode)
    key = journal_key(
        settings,
        describe_commit(Path(__file__).parent),
        _weights_digest(settings.model),
        settings.passages.read_bytes(),
    )
    kept = Journal(journal, key)
    return kept, missing_prompts(prompts, kept, limit)


def _weights_digest(model: Path) -> bytes:
    digest = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()


def _measure(settings: "QualitySettings", waiting: Sequence["QualityPrompt"], kept: "Journal") -> None:
    if not waiting:
        return
    from nebula_bench.adapters.vllm.quality_engine import EngineSize, open_engine
    from nebula_bench.quality.benchmark import measure_prompts

    longest = max(max(len(one.prompt.tokens), len(one.lender.tokens)) for one in waiting)
    size = EngineSize(
        longest_tokens=longest + settings.num_answer_tokens,
        most_calls=1 + max(2 * len(settings.fusions), settings.max_passages),
        shelf_tokens=4 * settings.max_passages * settings.max_segment_tokens,
    )
    Console(stderr=True).print("start vLLM", highlight=False)
    with open_engine(settings.model, size, settings.dtype) as engine, _Bar(len(waiting)) as bar:
        measure_prompts(waiting, engine, kept, settings, bar.advance)


class _Bar:
    """A bar with the time left on a terminal, some lines elsewhere; on the error stream."""

    def __init__(self, total: int) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("prompts"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self._console,
            refresh_per_second=1,
            # A prompt takes seconds, and long ones several times as long as short ones.
            speed_estimate_period=600,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("prompts", total=total)
        self._total = total

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def advance(self, outcome: "PromptOutcome") -> None:
        self._progress.advance(self._task)
        task = self._progress.tasks[0]
        if self._console.is_terminal or int(task.completed) % max(1, self._total // _LINES_OF_PROGRESS):
            return
        left = "" if task.time_remaining is None else f", about {task.time_remaining:.0f} s left"
        self._console.print(f"{task.completed:.0f} of {self._total} prompts{left}", highlight=False)


def _publish(
    settings: "QualitySettings",
    outcomes: Sequence["PromptOutcome"],
    results: Path | None,
    summary_path: Path | None,
    report: Path | None,
) -> Sequence["Measurement"]:
    from nebula_bench.quality.plot import plot_quality
    from nebula_bench.quality.report import PLOT_NAME, quality_markdown
    from nebula_bench.quality.rows import quality_rows
    from nebula_bench.quality.summary import summarize_quality

    found = summarize_quality(outcomes, settings)
    page = quality_markdown(found, origin_sentence())
    print(page)
    if summary_path is not None:
        summary_path.parent.mkdir(parents=True, exist_ok=True)
        summary_path.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if report is not None:
        report.mkdir(parents=True, exist_ok=True)
        (report / "quality.md").write_text(page, encoding="utf-8")
        plot_quality(found, report / PLOT_NAME)
    measurements = quality_rows(found)
    if results is not None:
        write_measurements(results, measurements)
    return measurements
