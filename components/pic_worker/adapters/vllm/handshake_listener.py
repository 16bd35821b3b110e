"""Where decode workers ask a prefill worker's engine how its KV is reached."""

from collections.abc import Callable
from threading import Event
from typing import Any, Protocol

import structlog
import zmq

from pic_worker.adapters.free_port import free_port

log = structlog.get_logger()

_RETRY_S = 2.0


class NixlScheduler(Protocol):
    """The scheduler's half of vLLM's NIXL connector."""

    side_channel_host: str
    side_channel_port: int


class HandshakeListener:
    """Takes the place of the listener of NIXL's connector, which it runs on a port that can be had.

    vLLM reads the port from the environment, seconds after somebody found it free. When another socket has got it in
    between, the thread of vLLM's own listener ends at once, and the engine waits for its sign of life for ever.
    """

    def __init__(self, scheduler: NixlScheduler, listen: Callable[..., None], *, any_port: bool) -> None:
        """
        Args:
            scheduler: told the new port where the listener moves; requests carry it to decode workers.
            listen: vLLM's own listener.
            any_port: a port that is taken is left for another one; False: waited for, since the user named it.
        """
        self._scheduler = scheduler
        self._listen = listen
        self._any_port = any_port

    @classmethod
    def install(cls, scheduler: NixlScheduler, *, any_port: bool) -> None:
        # vLLM has no other door to it.
        inside: Any = scheduler
        inside._nixl_handshake_listener = cls(scheduler, inside._nixl_handshake_listener, any_port=any_port)

    def __call__(self, encoded: object, ready: Event, stop: Event, *place: object) -> None:
        """Runs in a thread of its own until `stop`.

        Args:
            encoded: what it tells those who ask.
            ready: set once it listens.
            place: the port, among other things that differ between versions of vLLM.
        """
        while not stop.is_set():
            port = self._scheduler.side_channel_port
            try:
                self._listen(encoded, ready, stop, *place)
            except zmq.ZMQError as error:
                if ready.is_set() or error.errno != zmq.EADDRINUSE:
                    raise
                self._leave_or_wait(stop)
            moved_to = self._scheduler.side_channel_port
            place = tuple(moved_to if one == port else one for one in place)
        # Stopped before it could listen: whoever waits for that may go.
        ready.set()

    def _leave_or_wait(self, stop: Event) -> None:
        host, taken = self._scheduler.side_channel_host, self._scheduler.side_channel_port
        if self._any_port:
            self._scheduler.side_channel_port = free_port(host)
            log.info("transfer_port_moved", host=host, taken=taken, port=self._scheduler.side_channel_port)
        else:
            log.warning("transfer_port_taken", host=host, port=taken, retry_s=_RETRY_S)
            stop.wait(_RETRY_S)
