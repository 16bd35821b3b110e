"""Tests of the worker run in virtual time."""

from collections.abc import AsyncIterator, Callable

import pytest
from support.virtual_time import VirtualTimeLoop
from support.worker_net import WorkerNet


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], VirtualTimeLoop]]:
    return {"virtual": VirtualTimeLoop}


@pytest.fixture
async def net() -> AsyncIterator[WorkerNet]:
    net = WorkerNet()
    yield net
    await net.close()
