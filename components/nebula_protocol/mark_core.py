"""The tokens by which a separator or message start is found whatever text stands around it.

Byte-pair tokenizers merge the edges of a mark with its neighbours: in "the end.\\n---\\n" the line break may go to the
full stop, in " # # then" the last blank to the word. The tokens of the mark encoded alone then occur nowhere. Its core
is what all surroundings leave alike; edge tokens fall to the text on their side, the same ones each time, so that a
text between two marks still has one key.
"""

from collections.abc import Callable, Sequence
from itertools import product

from nebula_protocol.errors import MarkError

# One character of each kind that tokenizers treat apart. Text behind a mark is taken to begin without white space.
_BEFORE = ("a", "7", ".", ")", "\n")
_BEHIND = ("A", "8", '"', "(")


def find_core(mark: str, encode: Callable[[str], Sequence[int]]) -> tuple[int, ...]:
    """The longest run of tokens that the mark has in all surroundings; its whole for a special token.

    Raises:
        MarkError: the mark is empty, or all its tokens depend on the text around it.
    """
    if not encode(mark):
        raise MarkError(f"the tokenizer turns the mark {mark!r} into no token at all")
    first, *others = [tuple(encode(before + mark + behind)) for before, behind in product(_BEFORE, _BEHIND)]
    for length in range(len(first), 0, -1):
        for start in range(len(first) - length + 1):
            run = first[start : start + length]
            if all(_contains(other, run) for other in others):
                return run
    raise MarkError(
        f"the tokenizer merges the mark {mark!r} with the text around it, so that it cannot be found in prompts; "
        "take a special token, or give it a word or sign of its own, as in '\\n---\\n'"
    )


def _contains(sequence: tuple[int, ...], run: tuple[int, ...]) -> bool:
    return any(sequence[start : start + len(run)] == run for start in range(len(sequence) - len(run) + 1))
