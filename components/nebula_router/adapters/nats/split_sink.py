"""Tells workers over NATS how to divide their stores."""

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from nebula_protocol.codec import encode
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import SetSplit
from nebula_protocol.subjects import control_subject

log = structlog.get_logger()


class NatsSplitSink:
    """`SplitSink` over NATS core."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def send_split(self, worker_id: WorkerId, prefix_ratio: float) -> None:
        subject = control_subject(self._namespace, worker_id)
        try:
            await self._client.publish(subject, encode(SetSplit(prefix_ratio=prefix_ratio)))
        except NatsError as error:
            log.warning("split_lost", worker_id=worker_id, error=str(error))
