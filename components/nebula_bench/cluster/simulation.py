"""Puts a cluster together and lets virtual time pass until every request is answered."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import simpy

from nebula_bench.arrivals import poisson_arrivals_s
from nebula_bench.cluster.decode_worker import DecodeWorker
from nebula_bench.cluster.network import Network
from nebula_bench.cluster.outcome import Outcome
from nebula_bench.cluster.peers import Peers, Waiting
from nebula_bench.cluster.prefill_worker import PrefillWorker, WorkerParts
from nebula_bench.cluster.prompts import PromptMaker
from nebula_bench.cluster.router import Router
from nebula_bench.cluster.settings import ClusterSettings, Crash, LoadSettings
from nebula_bench.cluster.step_noise import NoisyStepCost, StepNoise
from nebula_bench.cluster.worker_log import WorkerLog
from nebula_bench.policies.nebula import refuse_salt
from nebula_bench.policies.policy import Policy
from nebula_bench.workload import TraceRequest
from nebula_protocol.cut_settings import CutSettings, make_cutter_config
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.ids import WorkerEpoch, WorkerId
from pic_worker.adapters.sim.costs import SimCosts, make_costs
from pic_worker.adapters.sim.engine_setup import make_card, make_engine_config
from pic_worker.core.sim_engine import SimEngine
from pic_worker.prompt_cutter import PromptCutter

_FIRST_WORKER_ID = 1


@dataclass(frozen=True, slots=True)
class Record:
    """All that a run has left behind."""

    outcomes: tuple[Outcome, ...]
    """In order of arrival."""
    log: WorkerLog
    costs: SimCosts
    num_prefill_workers: int
    num_lost_messages: int
    num_state_fetches: int


class Simulation:
    """One run. Equal settings, trace and seed give equal results."""

    def __init__(
        self,
        cluster: ClusterSettings,
        load: LoadSettings,
        make_policy: Callable[[ClusterSettings, CutterConfig, int], Policy],
    ) -> None:
        self._load = load
        self._cutter = spans_cutter(cluster.router.cut)
        self._policy = make_policy(cluster, self._cutter, load.seed)
        self._cluster = cluster.model_copy(update={"worker": self._policy.worker_settings(cluster.worker)})
        self._costs = self._policy.worker_costs(make_costs(self._cluster.worker))
        self._env = simpy.Environment()
        self._log = WorkerLog()
        self._network = Network(
            self._env, cluster.network, self._policy, load.seed, publish_delay_s=self._costs.event_delay_s
        )
        self._peers = Peers(self._env, self._network)
        self._live: dict[WorkerId, PrefillWorker] = {}
        self._noises = [self._make_noise(place) for place in range(cluster.prefill_workers)]
        for place in range(cluster.prefill_workers):
            self._start_worker(place, life=0)
        self._router = Router(self._env, self._policy, self._network, self._live, self._make_decoders())

    def run(self, trace: Sequence[TraceRequest], on_finished: Callable[[Outcome], None] = lambda _: None) -> Record:
        """Sends the trace's requests in order, at Poisson times."""
        self._router.add_first_workers()
        self._env.process(self._router.watch())
        self._env.process(self._router.control_split())
        for crash in self._cluster.crashes:
            self._env.process(self._crash(crash))
        outcomes: list[Outcome] = []
        self._env.run(until=self._env.process(self._send_all(trace, outcomes, on_finished)))
        return Record(
            outcomes=tuple(outcomes),
            log=self._log,
            costs=self._costs,
            num_prefill_workers=self._cluster.prefill_workers,
            num_lost_messages=self._network.num_lost_messages,
            num_state_fetches=self._router.num_state_fetches,
        )

    # ---- the load ----

    def _send_all(
        self, trace: Sequence[TraceRequest], outcomes: list[Outcome], on_finished: Callable[[Outcome], None]
    ) -> Waiting[None]:
        prompts = PromptMaker(self._load.output_tokens)
        arrivals_s = poisson_arrivals_s(len(trace), self._load.rate_per_s, self._load.seed).tolist()
        running: list[simpy.Process] = []
        last_of_session: dict[str, simpy.Process] = {}
        for position, (traced, arrival_s) in enumerate(zip(trace, arrivals_s, strict=True)):
            yield self._env.timeout(arrival_s - self._env.now)
            outcome = Outcome(position, self._env.now)
            outcomes.append(outcome)
            before = last_of_session.get(traced.session) if self._load.closed_loop else None
            process = self._env.process(self._serve(prompts, traced, outcome, before, on_finished))
            last_of_session[traced.session] = process
            running.append(process)
        yield from running

    def _serve(
        self,
        prompts: PromptMaker,
        traced: TraceRequest,
        outcome: Outcome,
        before: simpy.Process | None,
        on_finished: Callable[[Outcome], None],
    ) -> Waiting[None]:
        if before is not None and before.is_alive:
            yield before
            outcome.arrived_at_s = self._env.now
        yield from self._router.serve(prompts.routed_request(traced), outcome)
        on_finished(outcome)

    # ---- the cluster ----

    def _start_worker(self, place: int, life: int) -> None:
        worker_id = WorkerId(_FIRST_WORKER_ID + place)
        settings, costs, noise = self._cluster.worker, self._costs, self._noises[place]
        card = make_card(settings, costs, worker_id, WorkerEpoch(life))
        step_cost = NoisyStepCost(costs.step.table, costs.step.time_factor, costs.step.step_overhead_s, noise=noise)
        config = self._policy.engine_config(make_engine_config(settings, costs, card))
        parts = WorkerParts(
            card=card,
            engine=SimEngine(config, step_cost, costs.load, self._policy.make_store(config)),
            noise=noise,
            cutter=PromptCutter(
                config=self._cutter,
                block_size_tokens=settings.block_size_tokens,
                domain_id=card.domain.domain_id,
                pic=settings.pic,
                hash_salted=refuse_salt,
            ),
            link_fit=costs.link,
        )
        self._live[worker_id] = PrefillWorker(self._env, parts, self._policy, self._network, self._peers, self._log)

    def _crash(self, crash: Crash) -> Waiting[None]:
        yield self._env.timeout(crash.at_s)
        worker = self._live.pop(WorkerId(_FIRST_WORKER_ID + crash.worker), None)
        if worker is None:
            return
        worker.kill()
        yield self._env.timeout(crash.down_s)
        self._start_worker(crash.worker, life=worker.card.epoch + 1)

    def _make_noise(self, place: int) -> StepNoise:
        noise = self._cluster.noise
        return StepNoise(self._load.seed, place, worker_ratio=noise.worker_ratio, step_ratio=noise.step_ratio)

    def _make_decoders(self) -> dict[WorkerId, DecodeWorker]:
        first = _FIRST_WORKER_ID + self._cluster.prefill_workers
        ids = [WorkerId(first + place) for place in range(self._cluster.decode_workers)]
        costs = self._costs
        return {one: DecodeWorker(self._env, one, self._peers, costs.link, costs.decode_token_s) for one in ids}


def spans_cutter(cut: CutSettings) -> CutterConfig:
    """
    Raises:
        MarkError: a mark in text, which no benchmark can find in prompts without a tokenizer.
    """
    return make_cutter_config(cut, lambda _: ())
