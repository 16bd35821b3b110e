"""Names close to one that was mistyped."""

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 12


def nearest_names(name: str, valid: Iterable[str]) -> tuple[str, ...]:
    """Up to three valid names, the closest first; upper and lower case count as equal."""
    by_lower = {candidate.lower(): candidate for candidate in valid}
    matches = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.55)
    return tuple(by_lower[match] for match in matches)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Half a sentence: the nearest names, or the valid ones where none is near."""
    names = tuple(valid)
    near = nearest_names(name, names)
    if near:
        return f"did you mean {' or '.join(near)}?"
    if not names:
        return "there are none"
    listed = ", ".join(names[:MAX_LISTED])
    return f"valid: {listed}" + (", ..." if len(names) > MAX_LISTED else "")
