"""`DynamoWorkerPool` and `FrontendEndpoint` on Dynamo's real runtime, each side a process of its own."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import router_dynamo_caller, router_dynamo_router, router_dynamo_worker
from support.json_process import JsonProcess, Line, plane_environment
from support.router_replies import answer_tokens
from support.router_world import body_of

from nebula_protocol.handover import HANDOVER_KEY

pytestmark = pytest.mark.integration

QUICK_S = 4.0
"""For what must be noticed at once: far below the 10 s after which discovery drops a dead worker."""
_numbers = itertools.count()


@dataclass
class Deployment:
    """Processes of one namespace and discovery folder."""

    environment: Mapping[str, str]
    processes: list[JsonProcess] = field(default_factory=list)

    def start(self, script: object, *arguments: str) -> JsonProcess:
        path = script.__file__  # type: ignore[attr-defined]
        process = JsonProcess(path, *arguments, environment=self.environment)
        self.processes.append(process)
        return process

    def start_worker(self, role: str) -> JsonProcess:
        return self.start(router_dynamo_worker, f"pool.{role}.generate", role)

    def start_caller(self, endpoint: str) -> "Caller":
        process = self.start(router_dynamo_caller, endpoint)
        process.wait_for(event="ready")
        return Caller(process)

    def close(self) -> None:
        for process in self.processes:
            process.close()


@dataclass(frozen=True, slots=True)
class Caller:
    process: JsonProcess

    def wait_until_listed(self, *worker_ids: int) -> None:
        listed: set[int] = set()
        while not set(worker_ids) <= listed:
            self.process.send(do="list")
            live = self.process.wait_for_key("live")["live"]
            assert isinstance(live, list)
            listed = set(live)

    def begin(self, worker_id: int, request: Mapping[str, object], num_chunks: int | None = None) -> str:
        """Name of the call."""
        name = f"call {next(_numbers)}"
        self.process.send(do="call", name=name, worker_id=worker_id, request=request, num_chunks=num_chunks)
        return name

    def end_of(self, name: str) -> Line:
        return self.process.wait_for(ended=name)

    def call(self, worker_id: int, request: Mapping[str, object], num_chunks: int | None = None) -> Line:
        return self.end_of(self.begin(worker_id, request, num_chunks))

    def cancel(self, name: str) -> None:
        self.process.send(do="cancel", name=name)


def worker_id_of(process: JsonProcess) -> int:
    worker_id = process.wait_for(event="serving")["worker_id"]
    assert isinstance(worker_id, int)
    return worker_id


def plain(script: str) -> dict[str, object]:
    """A request of no particular form."""
    return {"extra_args": {"script": script}}


@pytest.fixture(scope="module")
def new_deployment(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Deployment]]:
    deployments: list[Deployment] = []

    def make() -> Deployment:
        folder: Path = tmp_path_factory.mktemp("discovery")
        deployments.append(Deployment(plane_environment(nats_url, folder)))
        return deployments[-1]

    yield make
    for deployment in deployments:
        deployment.close()


# ---- DynamoWorkerPool ----


@dataclass(frozen=True, slots=True)
class Pool:
    caller: Caller
    worker: JsonProcess
    worker_id: int
    doomed: JsonProcess
    doomed_id: int


@pytest.fixture(scope="module")
def pool(new_deployment: Callable[[], Deployment]) -> Pool:
    """One worker that lives, and one that a test kills."""
    deployment = new_deployment()
    workers = [deployment.start_worker("plain") for _ in range(2)]
    caller = deployment.start_caller("pool.plain.generate")
    worker_ids = [worker_id_of(worker) for worker in workers]
    caller.wait_until_listed(*worker_ids)
    return Pool(caller, workers[0], worker_ids[0], workers[1], worker_ids[1])


def test_chunks_come_as_the_worker_sent_them(pool: Pool) -> None:
    ended = pool.caller.call(pool.worker_id, plain("reply"))
    chunks = [{"token_ids": [1]}, {"token_ids": [2], "finish_reason": "length"}]
    assert (ended["how"], ended["chunks"]) == ("done", chunks)


def test_a_request_goes_to_the_worker_it_is_meant_for(pool: Pool) -> None:
    pool.caller.call(pool.worker_id, plain("nothing"))
    pool.worker.wait_for(event="started", script="nothing")
    with pytest.raises(TimeoutError):
        pool.doomed.wait_for(0.1, event="started", script="nothing")


def test_a_reply_may_be_empty(pool: Pool) -> None:
    ended = pool.caller.call(pool.worker_id, plain("nothing"))
    assert (ended["how"], ended["chunks"]) == ("done", [])


@pytest.mark.parametrize(
    ("script", "how", "reason"),
    [
        ("refuse", "refused", "the prompt is odd"),
        # Whatever the worker's own text says, the worker is there.
        ("fail", "refused", "RuntimeError: not found: Connection refused"),
        ("no object", "refused", "a chunk is a list, not an object"),
        ("shut down", "gone", ": going down"),
    ],
)
def test_a_workers_error_is_told_with_its_text(pool: Pool, script: str, how: str, reason: str) -> None:
    ended = pool.caller.call(pool.worker_id, plain(script))
    assert ended["how"] == how
    assert str(ended["reason"]).endswith(reason)


def test_an_error_behind_the_first_chunks_ends_the_reply(pool: Pool) -> None:
    ended = pool.caller.call(pool.worker_id, plain("break"))
    assert (ended["how"], ended["reason"]) == ("refused", "broken off")
    assert len(ended["chunks"]) == 2  # type: ignore[arg-type]


def test_an_unknown_worker_is_gone_at_once(pool: Pool) -> None:
    ended = pool.caller.call(12_345, plain("reply"))
    assert ended["how"] == "gone"
    assert ended["took_s"] < QUICK_S  # type: ignore[operator]


@pytest.mark.parametrize("num_chunks", [0, 1])
def test_a_cancelled_call_stops_the_worker_at_once(pool: Pool, num_chunks: int) -> None:
    name = pool.caller.begin(pool.worker_id, plain(f"hang {num_chunks}"))
    pool.worker.wait_for(event="started", script=f"hang {num_chunks}")
    if num_chunks:
        # The worker may begin before the caller's side of the stream stands; only then can Dynamo pass a stop on.
        pool.caller.process.wait_for(call=name, chunk=num_chunks)
    pool.caller.cancel(name)
    assert pool.caller.end_of(name)["how"] == "cancelled"
    pool.worker.wait_for(QUICK_S, event="stopped")


def test_a_closed_reply_stops_the_worker_at_once(pool: Pool) -> None:
    assert pool.caller.call(pool.worker_id, plain("hang 1"), num_chunks=1)["how"] == "closed"
    pool.worker.wait_for(QUICK_S, event="stopped")


def test_stopping_one_call_leaves_the_others_alone(pool: Pool) -> None:
    names = [pool.caller.begin(pool.worker_id, plain("hang 1")) for _ in range(2)]
    for name in names:
        pool.caller.process.wait_for(call=name, chunk=1)
    pool.caller.cancel(names[0])
    pool.worker.wait_for(event="stopped")
    with pytest.raises(TimeoutError):
        pool.worker.wait_for(0.2, event="stopped")
    pool.caller.cancel(names[1])
    pool.worker.wait_for(QUICK_S, event="stopped")


def test_a_killed_worker_is_gone_at_once_for_open_streams_and_for_new_calls(pool: Pool) -> None:
    silent = pool.caller.begin(pool.doomed_id, plain("hang 0"))
    begun = pool.caller.begin(pool.doomed_id, plain("hang 1"))
    pool.doomed.wait_for(event="started", script="hang 0")
    pool.caller.process.wait_for(call=begun, chunk=1)
    pool.doomed.kill()
    for name in (silent, begun):
        ended = pool.caller.process.wait_for(QUICK_S, ended=name)
        assert ended["how"] == "gone"
    # The first finds a connection that is broken, the second none.
    for _ in range(2):
        ended = pool.caller.call(pool.doomed_id, plain("reply"))
        assert ended["how"] == "gone"
        assert ended["took_s"] < QUICK_S  # type: ignore[operator]
    assert pool.caller.call(pool.worker_id, plain("reply"))["how"] == "done"


# ---- FrontendEndpoint ----


@dataclass(frozen=True, slots=True)
class Routed:
    """A client of the router, as the frontend is, and the workers behind it."""

    deployment: Deployment
    client: Caller
    router_id: int
    prefill: JsonProcess
    prefill_id: int

    def ask(self, request: Mapping[str, object]) -> Line:
        return self.client.call(self.router_id, request)


@pytest.fixture(scope="module")
def routed(new_deployment: Callable[[], Deployment]) -> Routed:
    deployment = new_deployment()
    prefill = deployment.start_worker("prefill")
    router = deployment.start(router_dynamo_router, "pool", "1")
    client = deployment.start_caller("pool.router.generate")
    router_id = worker_id_of(router)
    client.wait_until_listed(router_id)
    return Routed(deployment, client, router_id, prefill, worker_id_of(prefill))


def scripted(**scripts: str) -> dict[str, object]:
    return body_of(range(100)) | {"extra_args": {"script": scripts}}


def test_the_prefill_workers_reply_is_the_only_chunk(routed: Routed) -> None:
    ended = routed.ask(scripted())
    chunks = ended["chunks"]
    assert isinstance(chunks, list)
    (chunk,) = chunks
    assert (ended["how"], chunk["token_ids"]) == ("done", answer_tokens(100, 1))
    assert chunk["disaggregated_params"][HANDOVER_KEY]["prefill_worker_id"] == routed.prefill_id


def test_the_routers_own_id_is_no_choice_of_a_worker(routed: Routed) -> None:
    ended = routed.ask(scripted() | {"routing": {"prefill_worker_id": routed.router_id}})
    assert ended["how"] == "done"


def test_another_id_in_its_place_is_the_worker_that_the_client_chose(routed: Routed) -> None:
    assert routed.ask(scripted() | {"routing": {"prefill_worker_id": routed.prefill_id}})["how"] == "done"
    ended = routed.ask(scripted() | {"routing": {"prefill_worker_id": 12_345}})
    assert (ended["how"], ended["reason"]) == ("refused", "there is no prefill worker 12345")


def test_a_bad_request_is_an_invalid_argument_with_the_reason(routed: Routed) -> None:
    ended = routed.ask(scripted() | {"annotations": ["nebula.spans=[[5,101]]"]})
    assert (ended["how"], ended["chunks"]) == ("refused", [])
    assert ended["reason"] == "span [5, 101) is outside the prompt of 100 tokens"


def test_a_worker_that_blames_the_request_makes_it_an_invalid_argument(routed: Routed) -> None:
    ended = routed.ask(scripted(prefill="refuse"))
    assert (ended["how"], ended["reason"]) == ("refused", "the prompt is odd")


def test_a_worker_that_fails_for_another_reason_is_a_bad_gateway(routed: Routed) -> None:
    ended = routed.ask(scripted(prefill="fail"))
    assert ended["how"] == "refused"
    assert "not found: Connection refused" in str(ended["reason"])
    assert '"code":502' in str(ended["reason"])


@pytest.mark.parametrize("num_chunks", [0, 1])
def test_when_the_client_goes_away_the_worker_is_stopped_at_once(routed: Routed, num_chunks: int) -> None:
    worker = routed.prefill
    name = routed.client.begin(routed.router_id, scripted(prefill=f"hang {num_chunks}"))
    worker.wait_for(event="started", script=f"hang {num_chunks}")
    routed.client.cancel(name)
    worker.wait_for(QUICK_S, event="stopped")
    # It is as good as before.
    assert routed.ask(scripted())["how"] == "done"


def test_when_the_clients_process_is_killed_the_worker_is_stopped_too(routed: Routed) -> None:
    other = routed.deployment.start_caller("pool.router.generate")
    other.wait_until_listed(routed.router_id)
    other.begin(routed.router_id, scripted(prefill="hang 0"))
    routed.prefill.wait_for(event="started", script="hang 0")
    other.process.kill()
    routed.prefill.wait_for(QUICK_S, event="stopped")
    assert routed.ask(scripted())["how"] == "done"


def test_when_the_last_prefill_worker_is_killed_there_is_nobody(routed: Routed) -> None:
    name = routed.client.begin(routed.router_id, scripted(prefill="hang 0"))
    routed.prefill.wait_for(event="started", script="hang 0")
    routed.prefill.kill()
    ended = routed.client.process.wait_for(QUICK_S, ended=name)
    assert ended["how"] in ("refused", "gone")  # the latter from Dynamo 1.6 on, whose name of a 503 is "Unavailable"
    assert '"code":503' in str(ended["reason"])
