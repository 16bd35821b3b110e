"""Small files in formats that others publish."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

RAGPULSE_LENGTHS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "1_sys_prompt.jsonl": [{"sys_prompt_id": 90, "token_length": 512}, {"sys_prompt_id": 91, "token_length": 40}],
    "2_passages.jsonl": [{"passage_id": 7, "token_length": 300}, {"passage_id": 8, "token_length": 0}],
    "3_history.jsonl": [{"history_id": 50, "token_length": 11}],
    "4_user_input.jsonl": [{"user_input_id": 60, "token_length": 6}, {"user_input_id": 61, "token_length": 9}],
    "5_web_search.jsonl": [{"web_search_id": 70, "token_length": 120}],
}


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def ragpulse_line(session: str, *, timestamp: object = "82", output_length: int = 5, **ids: Sequence[int]) -> object:
    """A request of the parts that are named; the others are empty."""
    parts = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
    return {
        "timestamp": timestamp,
        "input_length": 1,
        "output_length": output_length,
        "hash_ids": {part: list(ids.get(part, ())) for part in parts},
        "session_id": session,
    }


def write_ragpulse(folder: Path, lines: Sequence[object]) -> Path:
    """The trace and its five files of lengths; gives the trace."""
    for name, lengths in RAGPULSE_LENGTHS.items():
        write_lines(folder / name, lengths)
    return write_lines(folder / "0_trace.jsonl", lines)


def mooncake_line(input_length: int, hash_ids: Sequence[int], **more: object) -> dict[str, object]:
    return {"timestamp": 3052, "input_length": input_length, "output_length": 7, "hash_ids": list(hash_ids), **more}
