"""What both routers know and are asked: workers, what these hold, and prompts that reuse parts of it."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec
import numpy as np

from nebula_bench.errors import SceneError
from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.span_annotation import spans_annotation
from nebula_bench.workload import Span
from nebula_protocol.tokens import TokenArray

_VOCABULARY = PseudoVocabulary()
_PREFIX_SHARE = 0.5
_FOREIGN_SHARE = 0.4
# Behind the first segment of a chain, so that what a prompt takes from there is never a prefix hit.
_FOREIGN_SEGMENT = 1


class SceneSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Workers hold chains of blocks, `num_entries` blocks together; every block of the scene is a different one."""

    num_workers: int
    num_entries: int = 100_000
    block_size_tokens: int = 16
    segment_tokens: int = 256
    """Length of what prompts take from chains; a whole number of blocks."""
    chain_blocks: int = 256
    prefix_chain_blocks: int = 1024
    """Length of the first worker's first chain, which all prompts begin with; half of the longest prompt."""


@dataclass(frozen=True, slots=True)
class StoredChain:
    """Blocks that follow one another from the start of a prompt, held by one worker."""

    worker: int
    """Position among the scene's workers."""
    number: int
    """Among the worker's chains."""
    num_blocks: int

    def tokens(self, spec: SceneSpec) -> TokenArray:
        num_tokens = self.num_blocks * spec.block_size_tokens
        parts = [self.segment(spec, at) for at in range(-(-num_tokens // spec.segment_tokens))]
        return np.concatenate(parts)[:num_tokens]

    def segment(self, spec: SceneSpec, at: int) -> TokenArray:
        return _VOCABULARY.tokens(f"chain {self.worker}.{self.number}.{at}", spec.segment_tokens)

    def block_names(self) -> range:
        """The engine's own hashes: distinct in the whole scene, positive and under 63 bits."""
        first = (self.worker << 44) | (self.number << 24) | 1
        return range(first, first + self.num_blocks)


@dataclass(frozen=True, slots=True)
class ScenePrompt:
    token_ids: list[int]
    spans: tuple[Span, ...]
    """Where its reused and new parts lie: what a client would mark."""
    prefix_blocks: int
    """So many leading blocks are held by the first worker and by no other."""

    @property
    def annotation(self) -> str:
        return spans_annotation(self.spans)


def stored_chains(spec: SceneSpec) -> tuple[tuple[StoredChain, ...], ...]:
    """The chains of each worker; their blocks add up to exactly `num_entries`.

    Raises:
        SceneError: there is nothing to share out.
    """
    if spec.num_workers < 2 or spec.segment_tokens % spec.block_size_tokens:
        raise SceneError("a scene needs two workers, and segments of whole blocks")
    share, rest = divmod(spec.num_entries, spec.num_workers)
    chains = []
    for worker in range(spec.num_workers):
        left = share + (worker < rest)
        lengths: list[int] = []
        while left:
            longest = spec.prefix_chain_blocks if worker == 0 and not lengths else spec.chain_blocks
            lengths.append(min(left, longest))
            left -= lengths[-1]
        chains.append(tuple(StoredChain(worker, number, length) for number, length in enumerate(lengths)))
    return tuple(chains)


def make_prompt(spec: SceneSpec, num_tokens: int) -> ScenePrompt:
    """Half of it a prefix that the first worker holds, two fifths segments that others hold, the rest new.

    Raises:
        SceneError: the scene's first chain is too short for it.
    """
    chains = stored_chains(spec)
    num_prefix = int(num_tokens * _PREFIX_SHARE) // spec.segment_tokens
    num_foreign = int(num_tokens * _FOREIGN_SHARE) // spec.segment_tokens
    if num_prefix * spec.segment_tokens > chains[0][0].num_blocks * spec.block_size_tokens:
        raise SceneError(f"no chain of the scene is long enough for a prompt of {num_tokens} tokens")
    parts = [chains[0][0].segment(spec, at) for at in range(num_prefix)]
    parts += [_foreign_segment(spec, chains, at) for at in range(num_foreign)]
    num_new = num_tokens - (num_prefix + num_foreign) * spec.segment_tokens
    parts.append(_VOCABULARY.tokens(f"new {num_tokens}", num_new))
    return ScenePrompt(
        token_ids=np.concatenate(parts).tolist(),
        spans=tuple(pairwise(accumulate(map(len, parts), initial=0))),
        prefix_blocks=num_prefix * spec.segment_tokens // spec.block_size_tokens,
    )


def _foreign_segment(spec: SceneSpec, chains: tuple[tuple[StoredChain, ...], ...], at: int) -> TokenArray:
    """A different one for each `at`, from the workers behind the first in turn."""
    turn, other = divmod(at, spec.num_workers - 1)
    own = chains[1 + other]
    # The last chain of a worker may be too short to have the segment.
    whole = own[:-1] or own
    depth, number = divmod(turn, len(whole))
    return whole[number].segment(spec, _FOREIGN_SEGMENT + depth)
