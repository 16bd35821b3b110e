"""The merged view as its documentation says it, with sets and dicts and no thought of speed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD, STORED, UNCONFIRMED

Prefix = tuple[int, ...]
GRACE_S = 5.0
SWEEP_S = 1.0


@dataclass(slots=True, eq=False)
class NaiveClaim:
    request: str
    worker: int
    blocks: set[Prefix]
    ready_at_s: dict[str, float]
    deadline_s: float
    ever: set[str] = field(default_factory=set)
    """Segments ever claimed."""
    in_flight: bool = True


@dataclass(slots=True)
class NaiveHolder:
    device: set[Prefix] = field(default_factory=set)
    host: set[Prefix] = field(default_factory=set)
    leaving: set[Prefix] = field(default_factory=set)
    departures: list[tuple[float, list[Prefix]]] = field(default_factory=list)
    early: dict[int, float] = field(default_factory=dict)
    """Names of blocks that the store has and that were never announced."""
    names: dict[int, Prefix] = field(default_factory=dict)
    segments: set[str] = field(default_factory=set)


class NaiveView:
    """Prefixes are tuples of block hashes; one worker is one holder."""

    def __init__(self, ttl_s: float) -> None:
        self.ttl_s = ttl_s
        self.holders: dict[int, NaiveHolder] = {}
        self.claims: list[NaiveClaim] = []
        self.next_sweep_s = float("-inf")

    # ---- events ----

    def store(self, worker: int, parent: int | None, names: Sequence[int], hashes: Sequence[int]) -> None:
        holder = self.holders[worker]
        prefix = () if parent is None else holder.names[parent]
        for name, tokens in zip(names, hashes, strict=True):
            prefix = (*prefix, tokens)
            holder.names[name] = prefix
            holder.device.add(prefix)
            holder.leaving.discard(prefix)
            if holder.early.pop(name, None) is not None:
                holder.host.add(prefix)
            for claim in self._claims_of(worker):
                claim.blocks.discard(prefix)

    def remove(self, worker: int, names: Sequence[int], now_s: float) -> None:
        holder = self.holders[worker]
        departing = []
        for name in names:
            prefix = holder.names.get(name)
            if prefix is None or prefix not in holder.device:
                continue
            holder.device.discard(prefix)
            self._disprove(worker, {prefix})
            if prefix not in holder.host:
                holder.leaving.add(prefix)
                departing.append(prefix)
        if departing:
            holder.departures.append((now_s, departing))

    def store_host(self, worker: int, names: Sequence[int], now_s: float) -> None:
        holder = self.holders[worker]
        for name in names:
            prefix = holder.names.get(name)
            if prefix is None:
                holder.early.setdefault(name, now_s)
            else:
                holder.host.add(prefix)
                holder.leaving.discard(prefix)

    def remove_host(self, worker: int, names: Sequence[int]) -> None:
        holder = self.holders[worker]
        for name in names:
            holder.early.pop(name, None)
            holder.host.discard(holder.names.get(name, ()))
        self._drop_names(holder)

    def clear_device(self, worker: int) -> None:
        holder = self.holders[worker]
        holder.device.clear()
        for claim in self._claims_of(worker):
            if not claim.in_flight:
                claim.blocks.clear()
        self._drop_names(holder)

    def clear_store(self, worker: int) -> None:
        holder = self.holders[worker]
        holder.host.clear()
        holder.segments.clear()
        for claim in self._claims_of(worker):
            if not claim.in_flight:
                claim.ready_at_s.clear()
        self._drop_names(holder)

    def store_segment(self, worker: int, name: str) -> None:
        self.holders[worker].segments.add(name)
        for claim in self._claims_of(worker):
            claim.ready_at_s.pop(name, None)

    def remove_segment(self, worker: int, name: str) -> None:
        self.holders[worker].segments.discard(name)
        for claim in self._claims_of(worker):
            if not claim.in_flight:
                claim.ready_at_s.pop(name, None)

    def replace(self, worker: int, device: dict[int, Prefix], host: dict[int, Prefix], segments: set[str]) -> None:
        new = NaiveHolder(set(device.values()), set(host.values()), names=device | host, segments=set(segments))
        self.holders[worker] = new
        for claim in self._claims_of(worker):
            claim.blocks -= new.device
            for name in new.segments:
                claim.ready_at_s.pop(name, None)

    def drop_worker(self, worker: int) -> None:
        del self.holders[worker]
        self.claims = [claim for claim in self.claims if claim.worker != worker]

    # ---- requests ----

    def dispatch(self, request: str, worker: int, path: Prefix, segments: dict[str, float], ready_at_s: float) -> None:
        """`segments` with the times at which they will be ready."""
        self.fail(request, worker)
        prefixes = [path[: depth + 1] for depth in range(len(path))]
        deadline_s = max([ready_at_s, *segments.values()]) + self.ttl_s
        claim = NaiveClaim(request, worker, set(prefixes) - self.holders[worker].device, {}, deadline_s)
        self.claims.append(claim)
        self._expect(claim, segments)

    def receive(self, request: str, worker: int, stored: set[str], now_s: float) -> None:
        claim = self.find(request, worker)
        if claim is None:
            if not stored:
                return
            claim = NaiveClaim(request, worker, set(), {}, 0.0)
            self.claims.append(claim)
        claim.in_flight = False
        claim.deadline_s = now_s + self.ttl_s
        for name in set(claim.ready_at_s) - stored:
            del claim.ready_at_s[name]
        self._expect(claim, dict.fromkeys(stored - claim.ever, now_s))

    def finish(self, request: str, worker: int, now_s: float) -> None:
        """Done, without word of what was kept."""
        claim = self.find(request, worker)
        if claim is not None:
            claim.in_flight = False
            claim.deadline_s = now_s + self.ttl_s

    def postpone(self, request: str, worker: int, ready_at_s: float) -> None:
        claim = self.find(request, worker)
        if claim is not None:
            claim.ready_at_s = dict.fromkeys(claim.ready_at_s, ready_at_s)
            claim.deadline_s = ready_at_s + self.ttl_s

    def fail(self, request: str, worker: int) -> None:
        self.claims = [claim for claim in self.claims if (claim.request, claim.worker) != (request, worker)]

    def find(self, request: str, worker: int) -> NaiveClaim | None:
        found = [claim for claim in self.claims if (claim.request, claim.worker) == (request, worker)]
        return found[0] if found else None

    def expire(self, now_s: float) -> None:
        self.claims = [claim for claim in self.claims if claim.deadline_s > now_s]
        if now_s < self.next_sweep_s:
            return
        self.next_sweep_s = now_s + SWEEP_S
        for holder in self.holders.values():
            while holder.departures and holder.departures[0][0] <= now_s - GRACE_S:
                holder.leaving -= set(holder.departures.pop(0)[1])
            holder.early = {name: at_s for name, at_s in holder.early.items() if at_s > now_s - GRACE_S}
            self._drop_names(holder)

    # ---- answers ----

    def run(self, worker: int, path: Prefix, *, device_only: bool) -> int:
        """Leading blocks of the path."""
        holder = self.holders[worker]
        held = holder.device | set().union(*(claim.blocks for claim in self._claims_of(worker)))
        if not device_only:
            held |= holder.host
        return next((depth for depth in range(len(path)) if path[: depth + 1] not in held), len(path))

    def segment(self, worker: int, name: str) -> tuple[int, float]:
        """State and, in flight, when it will be ready."""
        if name in self.holders[worker].segments:
            return STORED, 0.0
        claims = [claim for claim in self._claims_of(worker) if name in claim.ready_at_s]
        if not claims:
            return NOT_HELD, 0.0
        if any(not claim.in_flight for claim in claims):
            return UNCONFIRMED, 0.0
        return IN_FLIGHT, min(claim.ready_at_s[name] for claim in claims)

    def confirmed_entries(self) -> int:
        """What must have a row even if nobody claims it."""
        blocks = set().union(*(holder.device | holder.host | holder.leaving for holder in self.holders.values()))
        return len(blocks) + len(set().union(*(holder.segments for holder in self.holders.values())))

    def all_entries(self) -> int:
        """With what is claimed."""
        holders = self.holders.values()
        blocks = set().union(*(holder.device | holder.host | holder.leaving for holder in holders))
        blocks |= set().union(*(claim.blocks for claim in self.claims))
        segments = set().union(*(holder.segments for holder in holders))
        segments |= set().union(*(set(claim.ready_at_s) for claim in self.claims))
        return len(blocks) + len(segments)

    def _claims_of(self, worker: int) -> list[NaiveClaim]:
        return [claim for claim in self.claims if claim.worker == worker]

    def _expect(self, claim: NaiveClaim, segments: dict[str, float]) -> None:
        claim.ever |= set(segments)
        for name, ready_at_s in segments.items():
            if name not in self.holders[claim.worker].segments:
                claim.ready_at_s[name] = ready_at_s

    def _disprove(self, worker: int, prefixes: set[Prefix]) -> None:
        for claim in self._claims_of(worker):
            if not claim.in_flight:
                claim.blocks -= prefixes

    def _drop_names(self, holder: NaiveHolder) -> None:
        kept = holder.device | holder.host | holder.leaving
        holder.names = {name: prefix for name, prefix in holder.names.items() if prefix in kept}
