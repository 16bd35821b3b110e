"""`nebula trace`: workload traces of others, made ready for replay and benchmarks."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nebula_bench.line_file import numbered_lines
from nebula_bench.trace_import.importing import ImportedTrace, TraceFormat, import_trace, read_foreign
from nebula_bench.trace_import.mooncake import BLOCK_SIZE_TOKENS
from nebula_bench.trace_import.ragpulse import TRACE_NAME
from nebula_cli.errors import CliError

# What `nebula bench` looks for in its folder of traces.
_TRACE_SUFFIX = ".trace.jsonl.gz"

trace = typer.Typer(help="Bring workload traces of others into the form that replay and bench read.")


@trace.callback()
def _only_subcommands() -> None:
    pass


@trace.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="The foreign trace; for ragpulse 0_trace.jsonl or its folder.")],
    trace_format: Annotated[TraceFormat, typer.Option("--format", help="What the file is.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help=f"Where to write; NAME{_TRACE_SUFFIX} is found by `nebula bench`.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the workload.", show_default="the output file's, up to the first dot")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.", show_default="all")] = None,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Leave out requests with longer prompts.", show_default="none")
    ] = None,
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens in one of a mooncake file's blocks.")
    ] = BLOCK_SIZE_TOKENS,
) -> None:
    """Turn a public trace into one that `nebula replay` and `nebula bench` read.

    ragpulse: the folder data/ of github.com/flashserve/RAGPulse, that is
    0_trace.jsonl with five files of lengths beside it. Its passages recur in
    any order: what segments are for.

    mooncake: JSON lines of timestamp, input_length, output_length, hash_ids,
    as in FAST25-release/traces of github.com/kvcache-ai/Mooncake and as
    Dynamo's tools write them. An id stands for a block with all that is
    before it, so only prefixes are reused. Some prompts are longer than most
    models take: see --max-prompt-tokens.

    \b
    Examples:
      nebula trace import --format ragpulse RAGPulse/data \\
          -o traces/ragpulse.trace.jsonl.gz
      nebula trace import --format mooncake conversation_trace.jsonl \\
          --max-prompt-tokens 32000 -o traces/conversation.trace.jsonl.gz
      nebula bench cell --data traces --workload conversation --rate 10
      nebula replay --trace traces/ragpulse.trace.jsonl.gz --rate 10
    """
    workload = output.name.partition(".")[0] if name is None else name
    if not workload:
        raise CliError(f"-o {output}: a workload needs a name before the first dot, or --name")
    source = file / TRACE_NAME if file.is_dir() else file
    if output.resolve() == source.resolve():
        raise CliError(f"-o {output}: that is the file to import")
    with _progress() as progress:
        bar = progress.add_task("import", total=sum(1 for _ in numbered_lines(source)))
        imported = import_trace(
            read_foreign(trace_format, file, workload, block_size_tokens=block_size),
            output,
            limit=limit,
            max_prompt_tokens=max_prompt_tokens,
            on_request=lambda _: progress.advance(bar),
        )
    _print_summary(imported, output, max_prompt_tokens)


def _print_summary(imported: ImportedTrace, output: Path, max_prompt_tokens: int | None) -> None:
    print(f"{imported.num_requests:,} requests in {output}")
    print(
        f"{imported.prompt_tokens:,} prompt tokens, {imported.mean_prompt_tokens:,.0f} in the mean, "
        f"{imported.longest_prompt_tokens:,} in the longest"
    )
    print(f"{imported.ideal_hit_ratio:.1%} of them are in segments that an earlier request had too")
    if imported.num_left_out:
        print(f"left out: {imported.num_left_out:,} of more than {max_prompt_tokens:,} tokens")
    if not output.name.endswith(_TRACE_SUFFIX):
        print(f"for `nebula bench` its name would have to end in {_TRACE_SUFFIX}")


def _progress() -> Progress:
    """On the error stream, and on a terminal only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
