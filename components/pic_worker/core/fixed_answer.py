"""The answer that the simulated engine gives to every prompt."""

from collections.abc import Sequence


class FixedAnswer:
    """The same tokens over and over. How much of it was said is read from the tokens, so that it goes on after a
    request has moved to another worker."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        """
        Args:
            token_ids: At least one.
        """
        self._token_ids = tuple(token_ids)

    def token(self, index: int) -> int:
        return self._token_ids[index % len(self._token_ids)]

    def num_said(self, tokens: Sequence[int]) -> int:
        """The most tokens at the end of `tokens` that are the answer's beginning."""
        return max((self._num_said(tokens, ahead) for ahead in range(len(self._token_ids))), default=0)

    def _num_said(self, tokens: Sequence[int], ahead: int) -> int:
        """As above, of the lengths after which token number `ahead` would come next; 0 for none."""
        size, matching = len(self._token_ids), 0
        while matching < len(tokens) and tokens[-1 - matching] == self.token(ahead - 1 - matching):
            matching += 1
        return matching - (matching - ahead) % size if matching >= ahead else 0
