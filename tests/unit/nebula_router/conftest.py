"""Tests of the router that wait do so in virtual time."""

from collections.abc import Callable

from support.virtual_time import VirtualTimeLoop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], VirtualTimeLoop]]:
    return {"virtual": VirtualTimeLoop}
