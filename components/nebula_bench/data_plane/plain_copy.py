"""The yardstick: the same bytes through a socket with nothing else, from one process's memory into another's."""

import socket
import threading

from pic_worker.core.arena_ids import Page
from pic_worker.transport import PageMemory

_HOST = "127.0.0.1"


class PlainSource:
    """Sends the whole memory to each who connects."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        view = self._memory.view(0, Page(0), self._memory.num_pages)
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                # Closed.
                return
            with connected:
                connected.sendall(view)


def copy_plainly(port: int, memory: PageMemory) -> None:
    """Fills the memory from a `PlainSource`.

    Raises:
        ConnectionError: it broke off.
    """
    view = memory.view(0, Page(0), memory.num_pages)
    with socket.create_connection((_HOST, port)) as connected:
        while view:
            received = connected.recv_into(view)
            if not received:
                raise ConnectionError("the plain copy broke off")
            view = view[received:]
