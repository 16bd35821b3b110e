"""Prompts made for one purpose: chats that only prefix blocks serve, and lookups that only segments serve."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, count
from random import Random

from nebula_bench.split.cache_prompt import BLOCK_SIZE_TOKENS, CachePrompt, CacheSegment
from nebula_protocol.ids import EngineBlockHash, SegmentHash


class PromptSource:
    """Zipf-popular conversations and passages; the same seed gives the same prompts."""

    def __init__(
        self,
        seed: int,
        *,
        num_chats: int = 200,
        chat_blocks: int = 64,
        num_passages: int = 400,
        passage_tokens: int = 256,
        passages_each: int = 4,
        skew: float = 0.8,
    ) -> None:
        self._random = Random(seed)
        self._fresh = count(1 << 40)
        self._chat_blocks = chat_blocks
        self._passage_tokens = passage_tokens
        self._passages_each = passages_each
        self._chats = _zipf(num_chats, skew)
        self._passages = _zipf(num_passages, skew)

    def chat(self, *, shift: int = 0) -> CachePrompt:
        """A known conversation and a new question: its segments are too short to be kept."""
        chat = shift + self._draw(self._chats)
        blocks = [EngineBlockHash((chat << 16) + depth + 1) for depth in range(self._chat_blocks)]
        return self._prompt([*blocks, *self._fresh_blocks(1)], [])

    def lookup(self, *, shift: int = 0) -> CachePrompt:
        """A new question and known passages behind it: no block is ever seen again."""
        passages = {shift + self._draw(self._passages) for _ in range(self._passages_each)}
        segments = []
        start = BLOCK_SIZE_TOKENS
        for passage in sorted(passages):
            segments.append(_segment(passage, start, self._passage_tokens))
            start += self._passage_tokens
        return self._prompt(self._fresh_blocks(start // BLOCK_SIZE_TOKENS), segments)

    def scan(self) -> CachePrompt:
        """Nothing of it was or will be asked for again."""
        segments = [
            _segment(next(self._fresh), BLOCK_SIZE_TOKENS + place * self._passage_tokens, self._passage_tokens)
            for place in range(self._passages_each)
        ]
        return self._prompt(self._fresh_blocks(segments[-1].end // BLOCK_SIZE_TOKENS), segments)

    def mix(self, num_prompts: int, chat_share: float, *, shift: int = 0) -> Iterator[CachePrompt]:
        for _ in range(num_prompts):
            yield self.chat(shift=shift) if self._random.random() < chat_share else self.lookup(shift=shift)

    def _draw(self, weights: Sequence[float]) -> int:
        return self._random.choices(range(len(weights)), cum_weights=weights)[0]

    def _fresh_blocks(self, num_blocks: int) -> list[EngineBlockHash]:
        return [EngineBlockHash(next(self._fresh)) for _ in range(num_blocks)]

    def _prompt(self, blocks: Sequence[EngineBlockHash], segments: Sequence[CacheSegment]) -> CachePrompt:
        # One token more than whole blocks: the last is always computed.
        return CachePrompt(len(blocks) * BLOCK_SIZE_TOKENS + 1, tuple(blocks), tuple(segments))


def _zipf(num_items: int, skew: float) -> list[float]:
    """Cumulative weights of 1 / rank ** skew."""
    return list(accumulate((rank + 1) ** -skew for rank in range(num_items)))


def _segment(number: int, start: int, num_tokens: int) -> CacheSegment:
    return CacheSegment(SegmentHash(number.to_bytes(16, "big")), start, start + num_tokens)
