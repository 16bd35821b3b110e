"""Sends wrong requests to a running graph, and a good one after each."""

from dataclasses import dataclass

import httpx
import msgspec

from nebula_bench.serving.bad_input_cases import Api, BadInput, bad_inputs, good_body
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import GraphSpec, open_graph
from nebula_bench.serving.settings import ServingSettings

_TIMEOUT_S = 60.0
_MAX_TOKENS = 4
_DATA = "data:"


class _Error(msgspec.Struct, frozen=True):
    message: str


class _ErrorEvent(msgspec.Struct, frozen=True):
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    reason: str
    """As the client reads it; empty where it was told of no error."""


@dataclass(frozen=True, slots=True)
class BadInputOutcome:
    case: BadInput
    is_streamed: bool
    refusal: Refusal
    expected: Refusal
    """What the documentation says; its reason is a part of the real one."""
    is_alive: bool
    """The server answered a good request afterwards."""

    @property
    def is_as_documented(self) -> bool:
        same = self.refusal.status == self.expected.status and self.expected.reason in self.refusal.reason
        return same and self.is_alive

    @property
    def has_reason(self) -> bool:
        """A 4xx that says what is wrong."""
        return 400 <= self.refusal.status < 500 and self.case.reason in self.refusal.reason


def expected_refusal(case: BadInput) -> Refusal:
    """400 with the reason, whoever checks it, on each endpoint, streamed and not."""
    return Refusal(400, case.reason)


async def measure_bad_input(
    spec: GraphSpec, settings: ServingSettings, progress: Progress
) -> tuple[BadInputOutcome, ...]:
    """Every case, streamed and not.

    Raises:
        GraphError: the graph does not start.
    """
    progress.begin(f"start graphs:{spec.name}")
    async with open_graph(spec, settings.logs) as graph:
        variants = [(case, is_streamed) for case in bad_inputs() for is_streamed in (False, True)]
        progress.begin("send wrong requests", len(variants))
        outcomes = []
        async with httpx.AsyncClient(base_url=graph.url, timeout=_TIMEOUT_S, trust_env=False) as client:
            for case, is_streamed in variants:
                outcomes.append(await _try(client, graph.info.model_name, case, is_streamed=is_streamed))
                progress.advance()
        return tuple(outcomes)


async def _try(client: httpx.AsyncClient, model: str, case: BadInput, *, is_streamed: bool) -> BadInputOutcome:
    body = {**case.body, "model": model, "max_tokens": _MAX_TOKENS, "stream": is_streamed}
    refusal = read_refusal(await client.post(case.api, json=body))
    good = await client.post(Api.CHAT, json={**good_body(), "model": model, "max_tokens": _MAX_TOKENS})
    return BadInputOutcome(
        case=case,
        is_streamed=is_streamed,
        refusal=refusal,
        expected=expected_refusal(case),
        is_alive=good.status_code == httpx.codes.OK,
    )


def read_refusal(response: httpx.Response) -> Refusal:
    """The error in the body, or in an event of the stream."""
    if response.is_success:
        events = (line.removeprefix(_DATA) for line in response.text.splitlines() if line.startswith(_DATA))
        reasons = (_event_error(event) for event in events)
        return Refusal(response.status_code, next((reason for reason in reasons if reason), ""))
    try:
        reason = msgspec.json.decode(response.content, type=_Error).message
    except msgspec.MsgspecError:
        reason = response.text
    return Refusal(response.status_code, reason)


def _event_error(event: str) -> str:
    try:
        error = msgspec.json.decode(event, type=_ErrorEvent).error
    except msgspec.MsgspecError:
        return ""
    return "" if error is None else error.message
