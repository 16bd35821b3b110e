"""Events on their way from simulated workers to a policy."""

import simpy

from nebula_bench.cluster.network import Network
from nebula_bench.cluster.settings import NetworkSettings
from nebula_bench.policies.policy import Policy
from nebula_protocol.events import PicEvent, StoreCleared, WorkerPicEvents
from nebula_protocol.ids import EventId, WorkerEpoch, WorkerId


class Listening(Policy):
    sees_segments = True

    def __init__(self) -> None:
        self.heard_at_s: list[float] = []

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> None:
        self.heard_at_s.append(now_s)


def test_what_a_worker_publishes_late_comes_as_much_later() -> None:
    env, policy = simpy.Environment(), Listening()
    network = Network(env, NetworkSettings(event_delay_s=0.25), policy, seed=1, publish_delay_s=0.5)
    network.publish(WorkerId(1), WorkerEpoch(0), [PicEvent(event_id=EventId(0), data=StoreCleared())])
    env.run()
    assert policy.heard_at_s == [0.75]
