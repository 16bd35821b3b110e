"""`nebula replay` as a process of its own, against a server that answers in the lines of Dynamo's frontend."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.results import read_rows
from nebula_protocol.ids import RequestId, SegmentHash, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Source
from nebula_protocol.receipt import Receipt, SegmentOutcome, StepWork, Timing

pytestmark = pytest.mark.integration

MODEL = "demo-model"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Finished:
    exit_code: int
    out: str
    err: str


@dataclass(slots=True)
class ScriptedFrontend:
    """Answers each completion with the next behaviour of the script, and the last one for ever."""

    script: list[Callable[[web.Request, dict[str, object]], Awaitable[web.StreamResponse]]]
    bodies: list[dict[str, object]] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            behaviour = self.script[min(len(self.bodies), len(self.script)) - 1]
            return await behaviour(request, body)
        finally:
            self.in_flight -= 1


def receipt_for(prompt_tokens: int) -> dict[str, object]:
    """Half of the prompt by prefix, the rest computed."""
    hit = prompt_tokens // 2
    segment = SegmentOutcome(
        start=0, end=hit, segment_hash=SegmentHash(bytes(16)), planned=Source.LOCAL, done=Source.LOCAL
    )
    receipt = Receipt(
        request_id=RequestId("r"),
        worker=WorkerWithDpRank(WorkerId(2**62)),
        epoch=WorkerEpoch(1),
        prompt_tokens=prompt_tokens,
        prefix_hit_tokens=hit,
        segment_hit_tokens=0,
        local_hit_tokens=0,
        fetched_hit_tokens=0,
        recomputed_tokens=0,
        computed_tokens=prompt_tokens - hit,
        invalid_hit_tokens=0,
        segments=(segment,),
        timing=Timing(queue_s=0, wait_s=0, compute_s=0, total_s=0),
        work=StepWork(computed_tokens=1, attention_pairs=1, num_steps=1, step_tokens=1, step_pairs=1, step_s=1),
        last_event_ids={},
    )
    return msgspec.convert(msgspec.to_builtins(receipt), type=dict[str, object])


async def start_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def answer(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
    response = await start_stream(request)
    prompt = body["prompt"]
    num_tokens = len(prompt) if isinstance(prompt, list) else 0
    chunk = {
        "choices": [{"text": "wo", "index": 0, "finish_reason": "length"}],
        "nvext": {"engine_data": {"nebula_receipt": receipt_for(num_tokens)}},
    }
    await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n" + DONE)
    return response


async def answer_slowly(request: web.Request, body: dict[str, object]) -> web.StreamResponse:
    await asyncio.sleep(0.2)
    return await answer(request, body)


async def never_answer(_request: web.Request, _body: dict[str, object]) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise web.HTTPInternalServerError


async def refuse(_request: web.Request, _body: dict[str, object]) -> web.StreamResponse:
    return web.json_response({"message": "prompt too long", "type": "Bad Request", "code": 400}, status=400)


async def tear(request: web.Request, _body: dict[str, object]) -> web.StreamResponse:
    response = await start_stream(request)
    await response.write(b'data: {"choices":[{"text":"wo","index":0}]}\n\n')
    if request.transport is not None:
        request.transport.abort()
    return response


@pytest.fixture
async def frontend() -> AsyncIterator[ScriptedFrontend]:
    frontend = ScriptedFrontend([answer])
    app = web.Application()
    app.add_routes([web.get("/v1/models", frontend.models), web.post("/v1/completions", frontend.completions)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    frontend.url = f"http://{host}:{port}"
    yield frontend
    await runner.cleanup()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ten requests of 20 + 30 tokens; the first segment is always the same."""
    path = tmp_path / "demo.trace.jsonl"
    lines = [
        f'{{"w":"demo","i":{i},"sid":"s","segs":[{{"kind":"system","id":"a","tokens":20}},'
        f'{{"kind":"user","id":"u{i}","tokens":30}}]}}'
        for i in range(10)
    ]
    path.write_text("\n".join(lines))
    return path


async def start_replay(frontend: ScriptedFrontend, trace: Path, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nebula_cli", "replay", "--trace", str(trace), "--url", frontend.url, *options),
        cwd=trace.parent,
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "100"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def finish(process: asyncio.subprocess.Process) -> Finished:
    out, err = await asyncio.wait_for(process.communicate(), 30)
    return Finished(process.returncode or 0, out.decode(), err.decode())


async def run_replay(frontend: ScriptedFrontend, trace: Path, *options: str) -> Finished:
    return await finish(await start_replay(frontend, trace, *options))


async def test_every_request_is_sent_answered_and_counted(frontend: ScriptedFrontend, trace: Path) -> None:
    done = await run_replay(frontend, trace, "--rate", "200", "--warmup", "2", "--json", "out.json")
    assert (done.exit_code, done.err) == (0, "")
    record = msgspec.json.decode((trace.parent / "out.json").read_bytes())
    summary = record["summary"]
    assert (summary["num_requests"], summary["num_warmup"], summary["num_errors"]) == (10, 2, 0)
    assert summary["tokens"]["prompt"] == 8 * 50  # ten requests less two of warm-up
    assert summary["hit_ratio"] == 0.5
    assert summary["segments"]["done"]["local"] == 8
    assert 0 < summary["ttft_ms"]["p50"] < 1_000
    assert "hit ratio" in done.out
    assert "50.0%" in done.out


async def test_the_requests_are_the_traces_in_order_with_their_segments_marked(
    frontend: ScriptedFrontend, trace: Path
) -> None:
    await run_replay(frontend, trace, "--rate", "50", "--limit", "3", "--max-tokens", "2")
    vocabulary = PseudoVocabulary()
    expected = [[*vocabulary.tokens("a", 20).tolist(), *vocabulary.tokens(f"u{i}", 30).tolist()] for i in range(3)]
    assert [body["prompt"] for body in frontend.bodies] == expected
    assert frontend.bodies[0]["model"] == MODEL
    assert frontend.bodies[0]["max_tokens"] == 2
    nvext = frontend.bodies[0]["nvext"]
    assert isinstance(nvext, dict)
    assert nvext["annotations"] == ["nebula.spans=[[0,20],[20,50]]"]


async def test_refused_and_torn_requests_are_told_apart_and_fail_the_command(
    frontend: ScriptedFrontend, trace: Path
) -> None:
    frontend.script = [refuse, tear, answer]
    done = await run_replay(frontend, trace, "--rate", "100", "--json", "out.json")
    assert done.exit_code == 1
    errors = msgspec.json.decode((trace.parent / "out.json").read_bytes())["summary"]["errors"]
    assert errors.pop("400: prompt too long") == 1
    assert list(errors.values()) == [1]
    assert "prompt too long" in done.out


async def test_an_answer_that_does_not_come_is_an_error_after_the_timeout(
    frontend: ScriptedFrontend, trace: Path
) -> None:
    frontend.script = [never_answer]
    done = await run_replay(frontend, trace, "--rate", "100", "--limit", "1", "--timeout-s", "0.2")
    assert done.exit_code == 1
    assert "no complete answer within 0.2 s" in done.out


async def test_no_more_requests_are_in_flight_than_allowed(frontend: ScriptedFrontend, trace: Path) -> None:
    frontend.script = [answer_slowly]
    done = await run_replay(frontend, trace, "--rate", "1000", "--concurrency-limit", "3")
    assert done.exit_code == 0
    assert frontend.most_in_flight == 3


async def test_interrupting_prints_what_had_finished(frontend: ScriptedFrontend, trace: Path) -> None:
    frontend.script = [answer, answer, never_answer]
    process = await start_replay(frontend, trace, "--rate", "100", "--json", "out.json")
    while len(frontend.bodies) < 5:
        await asyncio.sleep(0.02)
    process.send_signal(signal.SIGINT)
    done = await finish(process)
    assert done.exit_code == 130
    assert "interrupted" in done.out
    summary = msgspec.json.decode((trace.parent / "out.json").read_bytes())["summary"]
    assert (summary["num_requests"], summary["is_interrupted"]) == (2, True)


async def test_rows_go_into_the_results_file_and_a_missed_bar_fails_the_command(
    frontend: ScriptedFrontend, trace: Path
) -> None:
    rows = ("--row", "demo_errors=errors==0", "--row", "demo_hit_ratio=hit_ratio>=0.9", "--results", "r/serve.json")
    done = await run_replay(frontend, trace, "--rate", "200", *rows)
    assert done.exit_code == 1
    errors, ratio = read_rows(trace.parent / "r" / "serve.json")
    assert (errors.id, errors.value, errors.ok) == ("demo_errors", 0, True)
    assert (ratio.value, ratio.ok) == (0.5, False)
    assert errors.command.startswith("nebula replay --trace demo.trace.jsonl --url ")
    assert str(trace.parent) not in (trace.parent / "r" / "serve.json").read_text()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--rate", "0"), "greater than 0"),
        (("--rate", "5", "--warmup", "10"), "leaves none of 10 requests"),
        (("--rate", "5", "--model", "other"), "does not serve 'other', but demo-model"),
        (("--rate", "5", "--row", "a=b"), "no measure 'b'"),
        (("--rate", "5", "--trace", "nothing.jsonl"), "No such file"),
        (("--rate", "5", "--token-range", "9", "5"), "first_token_id must be smaller"),
        (("--rate", "5", "--url", "http://127.0.0.1:9"), "no frontend at http://127.0.0.1:9"),
    ],
)
async def test_wrong_usage_is_one_line_and_exit_code_2(
    frontend: ScriptedFrontend, trace: Path, options: tuple[str, ...], reason: str
) -> None:
    done = await run_replay(frontend, trace, *options)
    assert done.exit_code == 2
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert reason in line
