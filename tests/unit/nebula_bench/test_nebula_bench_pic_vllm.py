"""The benchmark of real workers, without workers: prompts, times, reports."""

import json
import random
from pathlib import Path
from typing import Any, cast

import pytest
from support.first_token_receipts import first_token, receipt

from nebula_bench.counted_tests import read_cases, run_tests
from nebula_bench.errors import BenchError
from nebula_bench.pic_vllm.chat import ChatAnswer
from nebula_bench.pic_vllm.first_token_times import (
    CACHEBLEND15,
    LEGOLINK16,
    OFF,
    FirstTokenClock,
    FirstTokenTimes,
)
from nebula_bench.pic_vllm.memory import MemoryGrowth, random_prompt
from nebula_bench.pic_vllm.passage_prompts import PassagePrompts
from nebula_bench.pic_vllm.report import (
    ServeFigures,
    exactness_markdown,
    exactness_measurements,
    memory_markdown,
    memory_measurements,
    serve_markdown,
    serve_measurements,
)
from nebula_bench.pic_vllm.settings import PicVllmSettings
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.replay.reply_stream import ReplyStream

SETTINGS = PicVllmSettings(model=Path("model"), passages=Path("passages"), num_repeats=3)


def encode(text: str) -> list[int]:
    """A token a word."""
    return [hash(word) % 1000 for word in text.split()]


def prompts_of(num_texts: int = 40) -> PassagePrompts:
    texts = [list(range(1000 * index, 1000 * index + 100)) for index in range(1, num_texts + 1)]
    return PassagePrompts(texts, encode, prompt_tokens=464, num_passages=4)


def test_passages_are_equally_long_and_come_once() -> None:
    prompts = prompts_of()
    first, second = prompts.fresh_passages(), prompts.fresh_passages()
    # (464 - 64) / 4 = 100, and the seam has no token of this tokenizer.
    assert [len(passage) for passage in (*first, *second)] == [100] * 8
    assert not {token for passage in first for token in passage} & {token for passage in second for token in passage}


def test_texts_that_are_used_up_are_an_error() -> None:
    prompts = prompts_of(num_texts=6)
    prompts.fresh_passages()
    with pytest.raises(BenchError, match="used up"):
        prompts.fresh_passages()


def test_arrangements_of_the_same_passages_share_no_beginning() -> None:
    prompts = prompts_of()
    passages = prompts.fresh_passages()
    first, second = prompts.arrange(passages), prompts.arrange(passages)
    # "Request NUMBER. ..."
    assert first.tokens[1] != second.tokens[1]
    for one in (first, second):
        assert sorted(one.tokens[start:end] for start, end in one.spans) == sorted(passages)
    assert first.segment_tokens == 400


def test_a_body_marks_the_passages_and_asks_for_the_receipt() -> None:
    prompt = prompts_of().arrange(prompts_of().fresh_passages())
    body = json.loads(prompt.body("m", OFF, max_tokens=4))
    assert tuple(body["prompt"]) == prompt.tokens
    spans, off = body["nvext"]["annotations"]
    assert json.loads(spans.removeprefix("nebula.spans=")) == [list(span) for span in prompt.spans]
    assert off == "nebula.pic=off"
    assert body["nvext"]["extra_fields"] == ["engine_data"]
    assert (body["stream"], body["ignore_eos"], body["max_tokens"]) == (True, True, 4)


class Workers:
    """Answers at once, with what real workers would say; remembers the order in which it was asked."""

    def __init__(self, *, forgotten: range = range(0)) -> None:
        """Forgets everything before the requests with these numbers."""
        self._known: set[tuple[int, ...]] = set()
        self._forgotten = forgotten
        self.asked: list[str] = []

    async def complete(self, body: bytes, timeout_s: float) -> ReplyStream:
        asked = json.loads(body)
        spans = json.loads(asked["nvext"]["annotations"][0].removeprefix("nebula.spans="))
        annotation = (*asked["nvext"]["annotations"], "")[1]
        self.asked.append(annotation)
        passages = {tuple(asked["prompt"][start:end]) for start, end in spans}
        if len(self.asked) in self._forgotten:
            self._known.clear()
        hits = 0 if annotation == OFF else sum(map(len, passages & self._known))
        if annotation != OFF:
            self._known |= passages
        reply = ReplyStream()
        reply.first_content_s = 1e9
        reply.receipt = receipt(segment_hit_tokens=hits, prompt_tokens=len(asked["prompt"]))
        return reply


class Silent:
    def begin(self, title: str, total: int | None = None) -> None:
        pass

    def advance(self) -> None:
        pass


async def measure(workers: Workers) -> FirstTokenTimes:
    client = cast("FrontendClient", workers)
    return await FirstTokenClock(client, "m", prompts_of(), SETTINGS).measure(Silent())


async def test_every_way_is_measured_as_often_in_turns() -> None:
    workers = Workers()
    times = await measure(workers)
    assert [
        len(measured) for measured in (*times.known.values(), times.known_off, times.unknown, times.unknown_off)
    ] == [3] * 5
    lego, blend = (f"nebula.fusion={fusion}" for fusion in (LEGOLINK16, CACHEBLEND15))
    measured = workers.asked[4:]
    assert measured[:9] == [lego, blend, OFF, blend, OFF, lego, OFF, lego, blend]
    assert measured[9:] == [lego, OFF, OFF, lego, lego, OFF]


async def test_a_turn_on_a_worker_without_the_passages_is_begun_again() -> None:
    # Four requests go before; the fifth is the first one measured.
    workers = Workers(forgotten=range(5, 6))
    times = await measure(workers)
    assert times.num_repeated_turns == 1
    assert [len(measured) for measured in times.known.values()] == [3, 3]
    assert all(one.receipt.segment_hit_tokens == 400 for measured in times.known.values() for one in measured)


async def test_workers_that_never_reuse_what_they_know_are_not_measured() -> None:
    with pytest.raises(BenchError, match="0 tokens of segments"):
        await measure(Workers(forgotten=range(100)))


def times_of(known_s: float, blend_s: float, off_s: float) -> FirstTokenTimes:
    def three(seconds: float, hits: int = 0) -> list[Any]:
        return [first_token(seconds * factor, hits) for factor in (0.5, 1.0, 30.0)]

    return FirstTokenTimes(
        known={LEGOLINK16: three(known_s, 3000), CACHEBLEND15: three(blend_s, 3000)},
        known_off=three(off_s),
        unknown=three(off_s * 1.25),
        unknown_off=three(off_s),
        prompt_tokens=4000,
        segment_tokens=3000,
    )


def figures_of(times: FirstTokenTimes) -> ServeFigures:
    return ServeFigures(
        ready_s=100.0,
        first_chat=ChatAnswer("They are about | things.", receipt()),
        second_chat=ChatAnswer("One\nfact.", receipt(segment_hit_tokens=700)),
        times=times,
    )


def test_rows_compare_medians_with_their_bars() -> None:
    rows = {row.id: row for row in serve_measurements(figures_of(times_of(1.0, 2.5, 5.0)))}
    assert (rows["ttft_ratio_legolink16"].value, rows["ttft_ratio_legolink16"].ok) == (0.2, True)
    assert (rows["ttft_ratio_cacheblend15"].value, rows["ttft_ratio_cacheblend15"].ok) == (0.5, False)
    assert (rows["ttft_ratio_first_sight"].value, rows["ttft_ratio_first_sight"].ok) == (1.25, False)
    assert (rows["second_segment_hit_tokens"].value, rows["second_segment_hit_tokens"].ok) == (700, True)
    assert (rows["ready_s"].value, rows["ready_s"].ok) == (100.0, True)
    assert rows["ttft_off_s"].value == 5.0


def test_the_table_shows_each_way_and_the_answers() -> None:
    page = serve_markdown(figures_of(times_of(1.0, 2.5, 5.0)))
    assert "| known passages, `legolink:16` | 1.00 | 0.50 | 30.00 | 0.20 | 10.0% |" in page
    assert "700 were segment hits" in page
    assert "> One fact." in page


def test_memory_prompts_have_segments_that_nobody_has_seen() -> None:
    chance = random.Random(3)
    first, second = (random_prompt(chance, 5000, 48) for _ in range(2))
    segments = {one.tokens[start:end] for one in (first, second) for start, end in one.spans}
    assert len(segments) == 4
    assert {len(segment) for segment in segments} == {48}
    assert all(100 <= token < 5000 for token in first.tokens)


def test_growth_is_over_all_processes() -> None:
    growth = MemoryGrowth(
        2000,
        4000,
        192_000,
        {"Router": 100 << 20, "PrefillWorker": 900 << 20},
        {"Router": 160 << 20, "PrefillWorker": 900 << 20},
    )
    (row,) = memory_measurements(growth)
    # (160 + 900) / (100 + 900)
    assert (row.value, row.ok) == (1.06, False)
    page = memory_markdown(growth, 32_768)
    assert "| Router | 100 | 160 |" in page
    assert "+6.0%" in page


REPORT = """<?xml version="1.0"?><testsuites><testsuite tests="3">
<testcase classname="tests.exact" name="test_a" time="1"/>
<testcase classname="tests.exact" name="test_b" time="1"><failure message="no">trace</failure></testcase>
<testcase classname="tests.exact" name="test_c" time="1"><skipped message="gpu"/></testcase>
</testsuite></testsuites>"""


def test_only_cases_that_passed_count_as_exact() -> None:
    cases = read_cases(REPORT)
    assert [case.has_passed for case in cases] == [True, False, False]
    (row,) = exactness_measurements(cases)
    assert (row.value, row.ok) == (1, False)
    assert "1 of 3" in exactness_markdown(cases)
    assert "`tests.exact::test_b`" in exactness_markdown(cases)


def test_no_case_at_all_is_no_success() -> None:
    (row,) = exactness_measurements(())
    assert not row.ok


def test_the_tests_that_are_counted_are_there() -> None:
    root = Path(__file__).parents[3]
    assert all((root / test).is_file() for test in SETTINGS.exactness_tests)


async def test_missing_tests_are_an_error() -> None:
    with pytest.raises(BenchError, match=r"no tests at nowhere\.py"):
        await run_tests(("nowhere.py",))
