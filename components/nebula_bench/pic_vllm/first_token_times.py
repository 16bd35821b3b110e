"""Times to the first token, at the client: known passages by fusion method, unknown ones, and reuse off."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from nebula_bench.errors import BenchError
from nebula_bench.pic_vllm.passage_prompts import MarkedPrompt, PassagePrompts, Tokens
from nebula_bench.pic_vllm.settings import PicVllmSettings
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.serving.progress import Progress
from nebula_protocol.fusion import Fusion, cacheblend, legolink
from nebula_protocol.receipt import Receipt

OFF = "nebula.pic=off"
LEGOLINK16 = legolink(16)
CACHEBLEND15 = cacheblend(0.15)
_MAX_TRIES = 3
_ANSWER_TOKENS = 4
"""More than one, so that decode takes over."""


@dataclass(frozen=True, slots=True)
class FirstToken:
    after_s: float
    receipt: Receipt


@dataclass(slots=True)
class FirstTokenTimes:
    known: Mapping[Fusion, list[FirstToken]] = field(default_factory=lambda: {LEGOLINK16: [], CACHEBLEND15: []})
    known_off: list[FirstToken] = field(default_factory=list)
    """The same prompts, reuse off."""
    unknown: list[FirstToken] = field(default_factory=list)
    """Passages that no worker has."""
    unknown_off: list[FirstToken] = field(default_factory=list)
    num_repeated_turns: int = 0
    """Turns that were begun again, for a prompt was placed on a worker without its passages."""
    prompt_tokens: int = 0
    segment_tokens: int = 0

    def known_ratio(self, fusion: Fusion) -> float:
        """Of the medians, against reuse off."""
        return median_s(self.known[fusion]) / median_s(self.known_off)

    @property
    def first_sight_ratio(self) -> float:
        return median_s(self.unknown) / median_s(self.unknown_off)


Way = tuple[str, list[FirstToken]]
"""An annotation, and where its times are kept."""


def median_s(measured: Sequence[FirstToken]) -> float:
    return median(one.after_s for one in measured)


class FirstTokenClock:
    """One prompt after another; what is compared is measured in turns, beginning with another each time."""

    def __init__(self, client: FrontendClient, model: str, prompts: PassagePrompts, settings: PicVllmSettings) -> None:
        self._client = client
        self._model = model
        self._prompts = prompts
        self._settings = settings

    async def measure(self, progress: Progress) -> FirstTokenTimes:
        """
        Raises:
            BenchError: a request fails, or reuses other than it should.
        """
        times = FirstTokenTimes()
        progress.begin("time first tokens", 2 * self._settings.num_repeats)
        passages = self._prompts.fresh_passages()
        # Brings the passages into a store, and every path through the engine to its working speed.
        for annotations in ((), (_fusion(LEGOLINK16),), (_fusion(CACHEBLEND15),), (OFF,)):
            await self._ask(self._prompts.arrange(passages), *annotations)
        for turn in range(self._settings.num_repeats):
            await self._measure_known(passages, times, turn)
            progress.advance()
        for turn in range(self._settings.num_repeats):
            await self._measure_unknown(times, turn)
            progress.advance()
        return times

    async def _measure_known(self, passages: Sequence[Tokens], times: FirstTokenTimes, turn: int) -> None:
        ways = [*((_fusion(fusion), measured) for fusion, measured in times.known.items()), (OFF, times.known_off)]
        await self._measure_turn(lambda: self._prompts.arrange(passages), _turned(ways, turn), times, are_known=True)

    async def _measure_unknown(self, times: FirstTokenTimes, turn: int) -> None:
        ways = [(_fusion(LEGOLINK16), times.unknown), (OFF, times.unknown_off)]
        await self._measure_turn(
            lambda: self._prompts.arrange(self._prompts.fresh_passages()), _turned(ways, turn), times, are_known=False
        )

    async def _measure_turn(
        self, make_prompt: Callable[[], MarkedPrompt], ways: Sequence[Way], times: FirstTokenTimes, *, are_known: bool
    ) -> None:
        """One prompt in each way. The turn is begun again with another prompt where the router chose a worker without
        the passages; from then on it has them.

        Raises:
            BenchError: a request fails, or the passages are not reused again and again.
        """
        surprise: str | None = None
        for _ in range(_MAX_TRIES):
            prompt = make_prompt()
            times.prompt_tokens, times.segment_tokens = len(prompt.tokens), prompt.segment_tokens
            tokens = [await self._ask(prompt, annotation) for annotation, _ in ways]
            surprises = [
                _surprise(one.receipt, prompt.segment_tokens if are_known and annotation != OFF else 0, annotation)
                for (annotation, _), one in zip(ways, tokens, strict=True)
            ]
            surprise = next((found for found in surprises if found is not None), None)
            if surprise is None:
                for (_, measured), one in zip(ways, tokens, strict=True):
                    measured.append(one)
                return
            times.num_repeated_turns += 1
        raise BenchError(surprise)

    async def _ask(self, prompt: MarkedPrompt, *annotations: str) -> FirstToken:
        body = prompt.body(self._model, *annotations, max_tokens=_ANSWER_TOKENS)
        begin_s = time.perf_counter()
        reply = await self._client.complete(body, self._settings.answer_s)
        if reply.error is not None or reply.first_content_s is None:
            raise BenchError(f"a prompt of {len(prompt.tokens)} tokens failed: {reply.error}")
        if reply.receipt is None:
            raise BenchError("an answer came without a receipt")
        return FirstToken(reply.first_content_s - begin_s, reply.receipt)


def _fusion(fusion: Fusion) -> str:
    return f"nebula.fusion={fusion}"


def _turned(ways: Sequence[Way], turn: int) -> Sequence[Way]:
    first = turn % len(ways)
    return (*ways[first:], *ways[:first])


def _surprise(receipt: Receipt, segment_hit_tokens: int, annotation: str) -> str | None:
    if not receipt.prefix_hit_tokens and receipt.segment_hit_tokens == segment_hit_tokens:
        return None
    return (
        f"{annotation}: {receipt.segment_hit_tokens} tokens of segments and {receipt.prefix_hit_tokens} of prefix were "
        f"hits, not {segment_hit_tokens} and 0"
    )
