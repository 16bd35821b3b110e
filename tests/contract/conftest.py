"""Contract suites share one nats-server, and the data plane's two suites their ways to make a world."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.data_node import DataWorld
from support.nats_server import nats_url as nats_url


@pytest.fixture(
    params=[
        "fake",
        pytest.param("tcp", marks=pytest.mark.integration),
        pytest.param("nixl", marks=pytest.mark.integration),
    ]
)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DataWorld]:
    if request.param == "nixl":
        pytest.importorskip("nixl._api", reason="NIXL is not installed")
    world = DataWorld(request.param, tmp_path)
    yield world
    await world.close()
