"""Times to the first token of passages that another worker has, beside computing as many, in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nebula_bench.data_plane.first_answer import ChosenWorkerClient, FirstAnswer
from nebula_bench.data_plane.top_tokens import divergence_nats
from nebula_bench.errors import BenchError
from nebula_bench.pic_vllm.passage_prompts import MarkedPrompt, PassagePrompts, Tokens
from nebula_bench.serving.progress import Progress
from nebula_protocol.ids import WorkerId
from nebula_protocol.receipt import Receipt


@dataclass(frozen=True, slots=True)
class FetchTurn:
    """One worker gets passages of another one, that one uses them itself, and the first computes new ones."""

    fetched: FirstAnswer
    local: FirstAnswer
    """Of the worker that computed the passages, to the same prompt."""
    computed: FirstAnswer
    """Of the worker that fetched, to another prompt of the same length."""

    @property
    def divergence_nats(self) -> float:
        """Of the first token's distribution by fetched passages from that by the worker's own."""
        return divergence_nats(self.local.top, self.fetched.top)


@dataclass(frozen=True, slots=True)
class FetchTurns:
    turns: tuple[FetchTurn, ...]
    prompt_tokens: int
    segment_tokens: int
    """Of a prompt, those in passages."""

    @property
    def fetched_s(self) -> float:
        """The median."""
        return median(turn.fetched.after_s for turn in self.turns)

    @property
    def local_s(self) -> float:
        """The median."""
        return median(turn.local.after_s for turn in self.turns)

    @property
    def computed_s(self) -> float:
        """The median."""
        return median(turn.computed.after_s for turn in self.turns)

    @property
    def ratio(self) -> float:
        return self.fetched_s / self.computed_s

    @property
    def most_divergence_nats(self) -> float:
        return max(turn.divergence_nats for turn in self.turns)

    @property
    def mean_divergence_nats(self) -> float:
        return sum(turn.divergence_nats for turn in self.turns) / len(self.turns)


class FetchClock:
    """Every worker takes every part in turn. No two prompts have the same beginning, nor passages in the same order."""

    def __init__(self, client: ChosenWorkerClient, workers: Sequence[WorkerId], prompts: PassagePrompts) -> None:
        self._client = client
        self._workers = workers
        self._prompts = prompts

    async def measure(self, num_turns: int, progress: Progress) -> FetchTurns:
        """
        Raises:
            BenchError: a request fails, or passages come from elsewhere than they should.
        """
        num_workers = len(self._workers)
        progress.begin("fetch passages of other workers", num_turns + num_workers)
        passages = self._prompts.fresh_passages()
        prompt = self._prompts.arrange(passages)
        await self._ask(prompt, 0)
        turns: list[FetchTurn] = []
        # Until each worker has done everything once, connections are made and code is warmed up: that does not count.
        for number in range(num_turns + num_workers):
            turn, passages = await self._take_turn(passages, number)
            if number >= num_workers:
                turns.append(turn)
            progress.advance()
        return FetchTurns(tuple(turns), len(prompt.tokens), prompt.segment_tokens)

    async def _take_turn(self, passages: tuple[Tokens, ...], number: int) -> tuple[FetchTurn, tuple[Tokens, ...]]:
        """Begins with passages that worker `number` has; leaves those that the next one has."""
        source, home = number, number + 1
        known = self._prompts.arrange(passages)
        fresh = self._prompts.fresh_passages()
        turn = FetchTurn(
            fetched=await self._ask(known, home, fetched_tokens=known.segment_tokens),
            local=await self._ask(known, source, local_tokens=known.segment_tokens),
            computed=await self._ask(self._prompts.arrange(fresh), home),
        )
        return turn, fresh

    async def _ask(
        self, prompt: MarkedPrompt, number: int, *, fetched_tokens: int = 0, local_tokens: int = 0
    ) -> FirstAnswer:
        answer = await self._client.ask(prompt, self._workers[number % len(self._workers)])
        check_hits(answer.receipt, fetched_tokens=fetched_tokens, local_tokens=local_tokens)
        return answer


def check_hits(receipt: Receipt, *, fetched_tokens: int, local_tokens: int) -> None:
    """
    Raises:
        BenchError: other tokens were reused.
    """
    found = (receipt.prefix_hit_tokens, receipt.local_hit_tokens, receipt.fetched_hit_tokens)
    if found != (0, local_tokens, fetched_tokens):
        reasons = sorted({segment.fallback.value for segment in receipt.segments if segment.fallback is not None})
        raise BenchError(
            f"of {receipt.prompt_tokens} tokens, {found[0]} were hits by prefix, {found[1]} in the worker's own "
            f"segments and {found[2]} in fetched ones, not 0, {local_tokens} and {fetched_tokens}"
            + (f": {', '.join(reasons)}" if reasons else "")
        )
