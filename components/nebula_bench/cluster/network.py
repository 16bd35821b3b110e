"""Messages between the simulated processes: late, and sometimes lost."""

import random
from collections.abc import Callable, Sequence

import simpy

from nebula_bench.cluster.settings import NetworkSettings
from nebula_bench.policies.policy import Policy
from nebula_protocol.events import PicEvent, WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import DpRank, WorkerEpoch, WorkerId
from pic_worker.core.effects import DeviceEvent, WorkerEvent, kv_event_of

_RANK = DpRank(0)


class Network:
    """Carries workers' events to the policy."""

    def __init__(
        self,
        env: simpy.Environment,
        settings: NetworkSettings,
        policy: Policy,
        seed: int,
        *,
        publish_delay_s: float = 0.0,
    ) -> None:
        """
        Args:
            publish_delay_s: how late workers send their events.
        """
        self._env = env
        self._policy = policy
        self._delay_s = publish_delay_s + settings.event_delay_s
        self._loss_ratio = settings.event_loss_ratio
        self._random = random.Random(f"{seed}/network")
        self.message_s = settings.message_s
        self.num_lost_messages = 0

    def message(self) -> simpy.Timeout:
        """One message on its way."""
        return self._env.timeout(self.message_s)

    def publish(self, worker_id: WorkerId, epoch: WorkerEpoch, events: Sequence[WorkerEvent]) -> None:
        """Block events travel one a message, those of the store together, as the live publishers send them."""
        policy = self._policy
        blocks: list[DeviceEvent] = []
        store: list[PicEvent] = []
        for event in events:
            if isinstance(event, PicEvent):
                store.append(event)
            else:
                blocks.append(event)
        if blocks and policy.sees_blocks:
            kept = [
                WorkerKvEvent(worker_id=worker_id, event=kv_event_of(event, _RANK))
                for event in blocks
                if not self._is_lost()
            ]
            self._later(lambda: policy.apply_kv_events(kept, self._env.now))
        if store and policy.sees_segments and not self._is_lost():
            message = WorkerPicEvents(worker_id=worker_id, epoch=epoch, events=tuple(store))
            self._later(lambda: policy.apply_pic_events(message, self._env.now))

    def _is_lost(self) -> bool:
        is_lost = self._loss_ratio > 0 and self._random.random() < self._loss_ratio
        self.num_lost_messages += is_lost
        return is_lost

    def _later(self, deliver: Callable[[], None]) -> None:
        timeout = self._env.timeout(self._delay_s)
        timeout.callbacks.append(lambda _: deliver())
