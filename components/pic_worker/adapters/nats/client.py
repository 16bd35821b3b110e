"""The worker's connection to NATS."""

from nats.aio.client import Client

from nebula_nats.connection import NatsUnavailableError, connect
from pic_worker.errors import StartError


async def connect_worker(nats_url: str, name: str) -> Client:
    """
    Raises:
        StartError: no server answers.
    """
    try:
        return await connect(nats_url, name)
    except NatsUnavailableError as error:
        raise StartError(str(error)) from error
