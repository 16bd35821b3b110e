"""Where the figures of a page come from."""

import sys
from pathlib import Path

from nebula_bench.provenance import describe_command, describe_commit, describe_machine


def origin_sentence() -> str:
    """The command as it was typed, the commit of the code that runs, and the machine."""
    command = describe_command("nebula", sys.argv[1:])
    return f"`{command}` at commit {describe_commit(Path(__file__).parent)}, on {describe_machine()}."
