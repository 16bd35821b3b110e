"""Finding the data planes of other workers, on a real NATS server."""

import time

import pytest

from nebula_nats.connection import connect
from nebula_protocol.data_plane import DataPlaneCard, DataPlaneKind, PageGeometry
from nebula_protocol.ids import DomainId, WorkerEpoch, WorkerId
from pic_worker.adapters.nats.data_directory import NatsDataDirectory, answer_locations
from pic_worker.errors import PeerGoneError, PeerRefusedError

pytestmark = pytest.mark.integration

NAMESPACE = "data_directory"
THERE, WITHOUT, NOBODY = WorkerId(2**64 - 3), WorkerId(2), WorkerId(3)


def card(port: int) -> DataPlaneCard:
    return DataPlaneCard(
        worker_id=THERE,
        epoch=WorkerEpoch(7),
        kind=DataPlaneKind.TCP,
        host="127.0.0.1",
        port=port,
        domain_id=DomainId("d"),
        geometry=PageGeometry(page_tokens=16, page_bytes=4096, num_ranks=2),
    )


async def test_a_worker_is_found_and_found_anew_once_it_is_forgotten(nats_url: str) -> None:
    asker = await connect(nats_url, "asker")
    directory = NatsDataDirectory(asker, NAMESPACE)
    first = await connect(nats_url, "first")
    await answer_locations(first, NAMESPACE, THERE, card(1))
    assert await directory.locate(THERE, 5.0) == card(1)
    await first.close()
    second = await connect(nats_url, "second")
    await answer_locations(second, NAMESPACE, THERE, card(2))
    assert await directory.locate(THERE, 5.0) == card(1)
    directory.forget(THERE)
    assert await directory.locate(THERE, 5.0) == card(2)
    await second.close()
    await asker.close()


async def test_a_worker_that_is_not_there_is_gone_at_once_and_one_without_a_data_plane_says_so(nats_url: str) -> None:
    client = await connect(nats_url, "both")
    directory = NatsDataDirectory(client, NAMESPACE)
    await answer_locations(client, NAMESPACE, WITHOUT, None)
    began_s = time.monotonic()
    with pytest.raises(PeerGoneError):
        await directory.locate(NOBODY, 30.0)
    with pytest.raises(PeerRefusedError):
        await directory.locate(WITHOUT, 30.0)
    assert time.monotonic() - began_s < 15.0
    await client.close()
