"""The router's request path and membership in virtual time, as `RouterService` and `Ingest` run them live."""

import simpy

from nebula_bench.cluster.decode_choice import DecodeChoice
from nebula_bench.cluster.decode_worker import DecodeWorker
from nebula_bench.cluster.network import Network
from nebula_bench.cluster.outcome import Outcome
from nebula_bench.cluster.peers import Waiting
from nebula_bench.cluster.prefill_worker import PrefillWorker
from nebula_bench.policies.policy import Placement, Policy
from nebula_protocol.ids import WorkerId
from nebula_protocol.receipt import Receipt
from nebula_router.decide import HelperDispatch
from nebula_router.errors import NoWorkerError, WorkerGoneError
from nebula_router.request import RoutedRequest
from nebula_router.service import MAX_LOSSES

_MEMBERSHIP_PERIOD_S = 0.1
_SPLIT_PERIOD_S = 0.2


class Router:
    """One policy in front of the prefill workers that are alive."""

    def __init__(
        self,
        env: simpy.Environment,
        policy: Policy,
        network: Network,
        live: dict[WorkerId, PrefillWorker],
        decoders: dict[WorkerId, DecodeWorker],
    ) -> None:
        self._env = env
        self._policy = policy
        self._network = network
        self._live = live
        self._decoders = decoders
        self._decode_choice = DecodeChoice()
        self._known: set[WorkerId] = set()
        self._fetching: set[WorkerId] = set()
        self.num_state_fetches = 0

    # ---- members ----

    def add_first_workers(self) -> None:
        """Before the first request everybody is known."""
        for worker in self._live.values():
            self._policy.begin_state(worker.worker_id)
            self._take_state(worker)

    def watch(self) -> Waiting[None]:
        """For ever: compares members, and asks for the states that are needed."""
        while True:
            yield self._env.timeout(_MEMBERSHIP_PERIOD_S)
            for worker_id in sorted(self._known - self._live.keys()):
                self._forget(worker_id)
            wanted = (self._live.keys() - self._known) | (self._policy.needs_state() & self._live.keys())
            for worker_id in sorted(wanted - self._fetching):
                self._env.process(self._repair(self._live[worker_id]))

    def control_split(self) -> Waiting[None]:
        """For ever: tells workers how to divide their stores, as `SplitControl` does; no such message is lost here."""
        told: dict[PrefillWorker, float] = {}
        while True:
            prefix_ratio = self._policy.prefix_ratio()
            for worker in self._live.values():
                if prefix_ratio is not None and told.get(worker) != prefix_ratio:
                    told[worker] = prefix_ratio
                    self._env.process(self._tell_split(worker, prefix_ratio))
            yield self._env.timeout(_SPLIT_PERIOD_S)

    def _tell_split(self, worker: PrefillWorker, prefix_ratio: float) -> Waiting[None]:
        yield self._network.message()
        worker.set_split(prefix_ratio)

    def _repair(self, worker: PrefillWorker) -> Waiting[None]:
        self._fetching.add(worker.worker_id)
        self._policy.begin_state(worker.worker_id)
        yield self._network.message()
        chunks = worker.state_chunks()
        yield self._network.message()
        self._fetching.remove(worker.worker_id)
        if self._live.get(worker.worker_id) is worker:
            self.num_state_fetches += 1
            self._policy.add_worker(worker.card, chunks, self._env.now)
            self._known.add(worker.worker_id)

    def _take_state(self, worker: PrefillWorker) -> None:
        self._policy.add_worker(worker.card, worker.state_chunks(), self._env.now)
        self._known.add(worker.worker_id)

    def _forget(self, worker_id: WorkerId) -> None:
        self._policy.remove_worker(worker_id)
        self._known.discard(worker_id)

    # ---- requests ----

    def serve(self, request: RoutedRequest, outcome: Outcome) -> Waiting[None]:
        """One request from its arrival to its last token. Workers that die on the way cost time, not the answer."""
        excluded: set[WorkerId] = set()
        for attempt in range(1, MAX_LOSSES + 1):
            outcome.num_attempts = attempt
            try:
                yield from self._attempt(request, outcome, frozenset(excluded))
            except WorkerGoneError as error:
                self._forget(error.worker_id)
                excluded.add(error.worker_id)
            except NoWorkerError as error:
                outcome.error = str(error)
                return
            else:
                return
        outcome.error = f"{MAX_LOSSES} attempts ended with a lost worker"

    def _attempt(self, request: RoutedRequest, outcome: Outcome, excluded: frozenset[WorkerId]) -> Waiting[None]:
        now_s = outcome.decided_at_s = self._env.now
        placement = self._policy.place(request, excluded=excluded, attempt=outcome.num_attempts, now_s=now_s)
        outcome.placement = placement
        for helper in placement.helpers:
            self._env.process(self._help(helper, outcome))
        receipt = yield from self._prefill(request, placement)
        outcome.receipt = receipt
        if outcome.first_token_at_s is None:
            outcome.first_token_at_s = self._env.now
        if request.max_tokens != 1:
            yield from self._decode(request, receipt)

    def _prefill(self, request: RoutedRequest, placement: Placement) -> Waiting[Receipt]:
        try:
            worker = yield from self._reach(placement.target.worker_id)
            receipt = yield from worker.prefill(request, placement.plan)
        except WorkerGoneError:
            self._policy.record_failure(request, placement, self._env.now)
            raise
        yield self._network.message()
        self._policy.record_receipt(placement, receipt, self._env.now)
        return receipt

    def _help(self, helper: HelperDispatch, outcome: Outcome) -> Waiting[None]:
        try:
            worker = yield from self._reach(helper.worker.worker_id)
            receipt = yield from worker.help(helper)
        except WorkerGoneError as error:
            self._policy.record_helper_failure(helper, self._env.now)
            self._forget(error.worker_id)
            return
        yield self._network.message()
        outcome.helper_receipts.append(receipt)
        self._policy.record_helper_done(helper, self._env.now)

    def _reach(self, worker_id: WorkerId) -> Waiting[PrefillWorker]:
        yield self._network.message()
        worker = self._live.get(worker_id)
        if worker is None:
            raise WorkerGoneError(worker_id, "nobody is there")
        return worker

    def _decode(self, request: RoutedRequest, receipt: Receipt) -> Waiting[None]:
        prefill_worker = receipt.worker.worker_id
        chosen = self._decode_choice.choose(
            request.request_id, frozenset(self._decoders), num_tokens=len(request.tokens), now_s=self._env.now
        )
        if chosen is None:
            raise NoWorkerError("no decode worker is alive")
        kv_bytes = receipt.prompt_tokens * self._live_card_kv_bytes(prefill_worker)
        num_tokens = (request.max_tokens or 1) - 1
        try:
            yield self._network.message()
            yield from self._decoders[chosen].decode(request.request_id, prefill_worker, kv_bytes, num_tokens)
        finally:
            self._decode_choice.record_end(request.request_id)

    def _live_card_kv_bytes(self, worker_id: WorkerId) -> int:
        worker = self._live.get(worker_id)
        return 0 if worker is None else worker.card.kv_bytes_per_token
