"""A model's tokenizer and chat template, through transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import AutoTokenizer

from nebula_bench.errors import BenchError
from nebula_bench.quality.prompts import Frame

_MARK = "=user="


def read_chat(model: Path) -> tuple[Frame, Callable[[str], Sequence[int]]]:
    """What stands before and behind a user's text, and a way to token ids that adds none of its own.

    Raises:
        BenchError: the folder has no tokenizer or no chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
        )
    except (OSError, ValueError) as error:
        raise BenchError(f"model {model}: {str(error).splitlines()[0]}") from error
    before, mark, after = str(text).partition(_MARK)
    if not mark:
        raise BenchError(f"model {model}: its chat template leaves the user's text out")

    def encode(text: str) -> Sequence[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return token_ids

    return Frame(before, after), encode
