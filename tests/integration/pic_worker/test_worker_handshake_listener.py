"""vLLM's own NIXL scheduler on ports that somebody else has."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq
from support.running_graph import eventually

pytest.importorskip("vllm", reason="vLLM is not installed")

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import GET_META_MSG, NixlHandshakePayload
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

from pic_worker.adapters.free_port import free_port
from pic_worker.adapters.vllm.environment import prepare_environment
from pic_worker.adapters.vllm.handshake_listener import HandshakeListener
from pic_worker.errors import StartError
from pic_worker.settings import WorkerSettings

pytestmark = pytest.mark.timeout(60)

LOOPBACK = "127.0.0.1"
LIMIT_S = 20.0
AGENT = NixlHandshakePayload(compatibility_hash="same", agent_metadata_bytes=b"how to reach it")


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind((LOOPBACK, 0))
        other.listen()
        yield other.getsockname()[1]


def has_thread(scheduler: NixlPullConnectorScheduler) -> bool:
    thread = scheduler._nixl_handshake_listener_t
    return thread is not None and thread.is_alive()


@contextmanager
def starting(port: int, *, any_port: bool) -> Iterator[tuple[NixlPullConnectorScheduler, threading.Thread]]:
    """A scheduler whose engine is about to listen on `port`, and the thread that waits until it does."""
    # Its constructor wants a whole engine's configuration; of that, these four fields are all that listening reads.
    scheduler = object.__new__(NixlPullConnectorScheduler)
    scheduler.side_channel_host, scheduler.side_channel_port = LOOPBACK, port
    scheduler._nixl_handshake_listener_t, scheduler._stop_event = None, threading.Event()
    HandshakeListener.install(scheduler, any_port=any_port)
    start = threading.Thread(target=scheduler.set_xfer_handshake_metadata, args=({(0, 0): AGENT},), daemon=True)
    start.start()
    eventually(lambda: has_thread(scheduler), "the listener's thread runs")
    try:
        yield scheduler, start
    finally:
        scheduler.shutdown()  # type: ignore[no-untyped-call]


def metadata_from(port: int) -> bytes:
    with zmq.Context() as context, context.socket(zmq.REQ) as asker:
        asker.setsockopt(zmq.LINGER, 0)
        asker.setsockopt(zmq.RCVTIMEO, int(LIMIT_S * 1000))
        asker.connect(f"tcp://{LOOPBACK}:{port}")
        asker.send(msgspec.msgpack.encode((GET_META_MSG, 0, 0)))
        answer: bytes = asker.recv_multipart()[0]
    return msgspec.msgpack.decode(answer, type=NixlHandshakePayload).agent_metadata_bytes


def test_on_a_free_port_it_stays() -> None:
    port = free_port(LOOPBACK)
    with starting(port, any_port=True) as (scheduler, start):
        start.join(LIMIT_S)
        assert scheduler.side_channel_port == port
        assert metadata_from(port) == AGENT.agent_metadata_bytes


def test_a_taken_port_is_left_for_another_that_requests_then_carry() -> None:
    with taken_port() as port, starting(port, any_port=True) as (scheduler, start):
        start.join(LIMIT_S)
        assert not start.is_alive()
        assert scheduler.side_channel_port != port
        assert metadata_from(scheduler.side_channel_port) == AGENT.agent_metadata_bytes


def test_a_port_that_the_user_named_is_waited_for() -> None:
    with taken_port() as port:
        context = starting(port, any_port=False)
        scheduler, start = context.__enter__()
        start.join(1.0)
        assert start.is_alive(), "it cannot listen yet"
    try:
        start.join(LIMIT_S)
        assert not start.is_alive()
        assert scheduler.side_channel_port == port
        assert metadata_from(port) == AGENT.agent_metadata_bytes
    finally:
        context.__exit__(None, None, None)


def test_waiting_for_a_port_ends_with_the_engine() -> None:
    with taken_port() as port:
        with starting(port, any_port=False) as (_, start):
            pass
        start.join(LIMIT_S)
        assert not start.is_alive()


@pytest.mark.parametrize("port", [0, 5600])
def test_a_host_that_is_not_this_machine_s_is_refused(port: int) -> None:
    vllm = {"transfer_host": "192.0.2.1", "transfer_port": port}
    settings = WorkerSettings.model_validate({"engine": "vllm", "vllm": vllm})
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        prepare_environment(settings)
