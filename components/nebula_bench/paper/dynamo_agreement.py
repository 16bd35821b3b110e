"""Our Dynamo policy and cluster against Dynamo's own router and mock engine, on one trace with one curve of times."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from nebula_bench.arrivals import poisson_arrivals_s
from nebula_bench.cluster.prompts import PromptMaker
from nebula_bench.cluster.settings import ClusterSettings, LoadSettings, NetworkSettings, NoiseSettings
from nebula_bench.cluster.simulation import Simulation
from nebula_bench.cluster.summary import summarize
from nebula_bench.paper.dynamo_replay import DynamoReplay
from nebula_bench.policies.dynamo_replay import DynamoReplayPolicy
from nebula_bench.workload import TraceRequest
from pic_worker.adapters.sim.costs import make_costs

_MS_PER_S = 1000
DEVICE_BLOCKS = 25_000


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    our_hit_ratio: float
    dynamo_hit_ratio: float
    our_ttft_p50_ms: float
    dynamo_ttft_p50_ms: float

    @property
    def hit_points(self) -> float:
        """Distance of the prefix hit ratios in points of percent."""
        return abs(self.our_hit_ratio - self.dynamo_hit_ratio) * 100

    @property
    def ttft_ratio(self) -> float:
        """Distance of the median TTFTs over Dynamo's."""
        return abs(self.our_ttft_p50_ms / self.dynamo_ttft_p50_ms - 1)


def compare_with_dynamo(trace: Sequence[TraceRequest], load: LoadSettings, cluster: ClusterSettings) -> Agreement:
    """Runs both with prefix caching only, no store below the device tier, no noise and no messages.

    Raises:
        CellError: Dynamo's tool failed, or this environment's Dynamo does not bring it.
    """
    cluster = _bare(cluster)
    worker = cluster.worker
    simulation = Simulation(cluster, load, lambda _, cutter, seed: DynamoReplayPolicy(seed))
    summary = summarize(simulation.run(trace), load.warmup_requests)
    replay = DynamoReplay(
        num_prefill_workers=cluster.prefill_workers,
        block_size_tokens=worker.block_size_tokens,
        device_blocks=worker.device_capacity_tokens // worker.block_size_tokens,
        max_step_tokens=worker.max_step_tokens,
        step_cost=DynamoReplayPolicy.worker_costs(make_costs(worker)).step,
    )
    prompts = PromptMaker(load.output_tokens)
    arrivals_s = poisson_arrivals_s(len(trace), load.rate_per_s, load.seed).tolist()
    with tempfile.TemporaryDirectory() as folder:
        replayed = replay.run((prompts.routed_request(one).tokens for one in trace), arrivals_s, Path(folder))
    measured = replayed[load.warmup_requests :]
    return Agreement(
        our_hit_ratio=summary.tokens.prefix_hit / summary.tokens.prompt,
        dynamo_hit_ratio=sum(row.reused_input_tokens for row in measured) / sum(row.input_length for row in measured),
        our_ttft_p50_ms=summary.ttft_ms.p50 or 0.0,
        dynamo_ttft_p50_ms=float(np.median([row.source_held_ms - row.arrival_time_ms for row in measured])),
    )


def _bare(cluster: ClusterSettings) -> ClusterSettings:
    worker = cluster.worker
    device_tokens = DEVICE_BLOCKS * worker.block_size_tokens
    return cluster.model_copy(
        update={
            "worker": worker.model_copy(update={"device_capacity_tokens": device_tokens, "store_capacity_tokens": 0}),
            "network": NetworkSettings(message_s=0.0, event_delay_s=0.0),
            "noise": NoiseSettings(step_ratio=0.0, worker_ratio=0.0),
        }
    )
