"""What the planner must know about a worker, apart from what it holds and how busy it is."""

from dataclasses import dataclass

from nebula_protocol.card import WorkerCard
from nebula_protocol.ids import DpRank, WorkerWithDpRank


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """A card, and the factor by which measured prefill times differ from the card's fit (1.0 until measured)."""

    worker: WorkerWithDpRank
    card: WorkerCard
    cost_factor: float = 1.0


def profiles_of(card: WorkerCard) -> tuple[WorkerProfile, ...]:
    """One profile per data-parallel rank."""
    return tuple(
        WorkerProfile(worker=WorkerWithDpRank(card.worker_id, DpRank(rank)), card=card) for rank in range(card.dp_size)
    )
