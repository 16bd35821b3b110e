"""Obeys and answers the worker's process, at any time: also while the engine has nothing to do."""

import os
import threading
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec
import structlog
import zmq

from pic_worker.adapters.vllm.catalogue_wire import (
    CallFailed,
    CancelCall,
    CatalogueCall,
    CatalogueReply,
    ConfirmCall,
    Confirmed,
    ControlMessage,
    Done,
    DropCall,
    LeaseCall,
    Leased,
    ReleaseCall,
    ReserveCall,
    RoomMade,
)
from pic_worker.adapters.vllm.engine_wire import ClearControl, SplitControl
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.host_leases import HostLeases

_log = structlog.get_logger(__name__)

_LOOK_MS = 1_000
"""How often it looks whether the worker's process is still there."""


class StoreOwner(Protocol):
    """The scheduler half, as far as it is of interest here."""

    @property
    def catalogue(self) -> HostCatalogue: ...

    def tell_events(self) -> None: ...


class ControlDesk:
    """A thread with the control socket. It touches the scheduler half only under the lock, and never waits there."""

    def __init__(self, control_url: str, half: StoreOwner, lock: AbstractContextManager[object]) -> None:
        self._url = control_url
        self._half = half
        self._lock = lock
        self.leases = HostLeases(half.catalogue)
        self._parent = os.getppid()
        self._context = zmq.Context()
        self._thread = threading.Thread(target=self._run, name="nebula-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """What is leased and reserved stays so: the store goes with the process."""
        # Wakes the thread, and waits until it has closed its socket.
        self._context.term()
        self._thread.join()

    def obey(self, message: ControlMessage) -> CatalogueReply | None:
        """The answer; None where none is wanted."""
        with self._lock:
            reply = self._carry_out(message)
            self._half.tell_events()
        return reply

    # ----

    def _run(self) -> None:
        decoder: msgspec.msgpack.Decoder[ControlMessage] = msgspec.msgpack.Decoder(ControlMessage)
        encoder = msgspec.msgpack.Encoder()
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        try:
            # No bound on what waits to be sent: a full queue would block.
            socket.set_hwm(0)
            socket.connect(self._url)
            while self._is_attended():
                if not socket.poll(_LOOK_MS):
                    continue
                reply = self._answer(decoder, socket.recv())
                if reply is not None:
                    socket.send(encoder.encode(reply))
        except zmq.ContextTerminated:
            return
        finally:
            socket.close(linger=0)

    def _answer(self, decoder: "msgspec.msgpack.Decoder[ControlMessage]", data: bytes) -> CatalogueReply | None:
        try:
            return self.obey(decoder.decode(data))
        except msgspec.DecodeError as error:
            _log.warning("engine_control_unreadable", error=str(error))
        except Exception:
            # One message that fails must not end the thread that all others need.
            _log.exception("engine_control_failed")
        return None

    def _is_attended(self) -> bool:
        """False once the worker's process is gone: what it held is free, for it can touch no page any more."""
        if os.getppid() == self._parent:
            return True
        with self._lock:
            self.leases.end_all()
            self._half.tell_events()
        return False

    def _carry_out(self, message: ControlMessage) -> CatalogueReply | None:
        match message:
            case SplitControl(prefix_ratio=prefix_ratio):
                self._half.catalogue.set_split(prefix_ratio)
                return None
            case ClearControl():
                self._half.catalogue.clear()
                return None
            case _:
                return self._call(message)

    def _call(self, call: CatalogueCall) -> CatalogueReply:
        leases = self.leases
        match call:
            case LeaseCall(keys=keys):
                return Leased(call_id=call.call_id, lease=leases.lease(keys))
            case ReserveCall(segments=segments):
                return RoomMade(call_id=call.call_id, room=leases.reserve(segments))
            case ConfirmCall(reservation_id=reservation_id):
                try:
                    return Confirmed(call_id=call.call_id, lease_id=leases.confirm(reservation_id))
                except KeyError:
                    return CallFailed(call_id=call.call_id, reason=f"no reservation {reservation_id}")
            case ReleaseCall(lease_id=lease_id):
                leases.release(lease_id)
            case CancelCall(reservation_ids=reservation_ids):
                leases.cancel(reservation_ids)
            case DropCall(keys=keys):
                leases.drop(keys)
        return Done(call_id=call.call_id)
