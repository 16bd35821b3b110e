"""The workers' cards as numpy columns. Built when workers come or go, used for every request in between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from nebula_protocol.card import WorkerCard
from nebula_protocol.fusion import Fusion
from nebula_protocol.ids import Role, WorkerWithDpRank
from nebula_router.core.load_snapshot import FloatArray
from nebula_router.core.worker_profile import WorkerProfile


def link_s_per_token(card: WorkerCard) -> float:
    """Time that one token's KV takes on the worker's link, floor excluded."""
    return card.kv_bytes_per_token / card.peer_link.bytes_per_s


@dataclass(frozen=True, slots=True)
class Fleet:
    """Columns of shape [W] in the order of `workers`; times are those of the cards, before any factor."""

    workers: tuple[WorkerWithDpRank, ...]
    step_s: FloatArray
    per_token_s: FloatArray
    per_pair_s: FloatArray
    load_s_per_token: FloatArray
    link_floor_s: FloatArray
    link_s_per_token: FloatArray
    overlap_ratio: FloatArray
    """Share of a step that runs while the copies that it uses still arrive, layer by layer; 0 where only whole copies
    are of use."""
    max_step_tokens: FloatArray
    recompute_tokens: FloatArray
    reused_ratio: FloatArray
    """Share of a segment's other tokens that is not computed again, a fusion's probe counted; 0 where the worker does
    not reuse segments."""
    num_layers: tuple[int, ...]
    context_tokens: FloatArray
    prefills: npt.NDArray[np.bool_]
    reuses_segments: npt.NDArray[np.bool_]
    id_order: npt.NDArray[np.intp]
    """Each worker's place among the workers by id."""

    @classmethod
    def of(cls, profiles: Sequence[WorkerProfile]) -> Self:
        cards = [profile.card for profile in profiles]
        workers = tuple(profile.worker for profile in profiles)
        place = {worker: index for index, worker in enumerate(sorted(workers))}

        def column(values: list[float]) -> FloatArray:
            return np.array(values, dtype=np.float64)

        return cls(
            workers=workers,
            step_s=column([card.step_cost.step_s for card in cards]),
            per_token_s=column([card.step_cost.per_token_s for card in cards]),
            per_pair_s=column([card.step_cost.per_pair_s for card in cards]),
            load_s_per_token=column([card.load_s_per_token for card in cards]),
            link_floor_s=column([card.peer_link.floor_s for card in cards]),
            link_s_per_token=column([link_s_per_token(card) for card in cards]),
            overlap_ratio=column([1 - 1 / card.stream_pieces for card in cards]),
            max_step_tokens=column([card.max_step_tokens for card in cards]),
            recompute_tokens=column([card.fusion.leading_tokens for card in cards]),
            reused_ratio=column([card.fusion.spared_ratio(card.num_layers) * card.pic for card in cards]),
            num_layers=tuple(card.num_layers for card in cards),
            context_tokens=column([card.context_tokens for card in cards]),
            prefills=np.array([card.role is Role.PREFILL for card in cards], dtype=np.bool_),
            reuses_segments=np.array([card.pic for card in cards], dtype=np.bool_),
            id_order=np.array([place[worker] for worker in workers], dtype=np.intp),
        )

    def with_fusion(self, fusion: Fusion) -> Self:
        """The same workers for a request that asks for its own fusion."""
        spared = np.array([fusion.spared_ratio(num_layers) for num_layers in self.num_layers], dtype=np.float64)
        return replace(
            self,
            recompute_tokens=np.full(len(self.workers), float(fusion.leading_tokens)),
            reused_ratio=spared * self.reuses_segments,
        )
