"""Where decode workers ask a prefill worker's engine how its KV is reached."""

from threading import Event

import structlog
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler

from pic_worker.adapters.free_port import free_port

log = structlog.get_logger()

_RETRY_S = 2.0


class HandshakeListener:
    """Takes the place of the listener of NIXL's connector, which it runs on a port that can be had.

    vLLM reads the port from the environment, seconds after somebody found it free. When another socket has got it in
    between, the thread of vLLM's own listener ends at once, and the engine waits for its sign of life for ever.
    """

    def __init__(self, scheduler: NixlBaseConnectorScheduler, *, any_port: bool) -> None:
        """Args:
        scheduler: told the new port where the listener moves; requests carry it to decode workers.
        any_port: a port that is taken is left for another one; False: waited for, since the user named it.
        """
        self._scheduler = scheduler
        self._any_port = any_port
        self._listen = scheduler._nixl_handshake_listener  # vLLM has no other door to it.

    @classmethod
    def install(cls, scheduler: NixlBaseConnectorScheduler, *, any_port: bool) -> None:
        listener = cls(scheduler, any_port=any_port)
        setattr(scheduler, "_nixl_handshake_listener", listener)  # noqa: B010  # For mypy it is a method for ever.

    def __call__(self, encoded: dict[tuple[int, int], bytes], ready: Event, stop: Event, host: str, port: int) -> None:
        """Runs in a thread of its own until `stop`."""
        while not stop.is_set():
            try:
                self._listen(encoded, ready, stop, host, port)
            except zmq.ZMQError as error:
                if ready.is_set() or error.errno != zmq.EADDRINUSE:
                    raise
                port = self._next_port(host, port, stop)
        # Stopped before it could listen: whoever waits for that may go.
        ready.set()

    def _next_port(self, host: str, taken: int, stop: Event) -> int:
        if not self._any_port:
            log.warning("transfer_port_taken", host=host, port=taken, retry_s=_RETRY_S)
            stop.wait(_RETRY_S)
            return taken
        port = free_port(host)
        log.info("transfer_port_moved", host=host, taken=taken, port=port)
        self._scheduler.side_channel_port = port
        return port
