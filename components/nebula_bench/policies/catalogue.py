"""Every policy by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nebula_bench.cluster.settings import ClusterSettings
from nebula_bench.errors import CellError
from nebula_bench.policies.accounting import EventDrivenView, OptimisticView, PredictedView
from nebula_bench.policies.dynamo_kv import DynamoKvPolicy, DynamoKvPrefixPolicy
from nebula_bench.policies.nebula import NebulaPolicy, OneOrderPolicy
from nebula_bench.policies.oracle import OmniscientPolicy, OraclePolicy
from nebula_bench.policies.policy import Policy
from nebula_bench.policies.prefix_pool import PrefixPoolOnlyPolicy, PrefixPoolPolicy
from nebula_bench.policies.round_robin import RoundRobinPolicy
from nebula_protocol.cutting import CutterConfig
from nebula_router.core.view import ClusterView

PolicyFactory = Callable[[ClusterSettings, CutterConfig, int], Policy]
"""(cluster, cutter, seed) to a fresh policy."""

# The longest that the router's settings allow: longer than any run.
_FOR_EVER_S = 600.0
_PREDICTED_TTL_S = 5.0


def _nebula(
    view: type[ClusterView] | None = None, policy_type: type[NebulaPolicy] = NebulaPolicy, **router: object
) -> PolicyFactory:
    def make(cluster: ClusterSettings, cutter: CutterConfig, seed: int) -> Policy:
        settings = cluster.router.model_copy(update=router)
        policy = policy_type(settings, cutter)
        if view is not None:
            policy.state.view = view(
                max_entries=settings.max_index_entries, max_holders=settings.max_workers, ttl_s=settings.ttl_s
            )
        return policy

    return make


POLICIES: Mapping[str, PolicyFactory] = MappingProxyType(
    {
        "nebula": _nebula(),
        # Ablations.
        "nebula_local": _nebula(remote_reuse=False, parallel_prefill=False),
        "nebula_no_join": _nebula(join=False),
        "nebula_no_parallel": _nebula(parallel_prefill=False),
        # Other ways to divide the stores.
        "nebula_fixed_split": _nebula(split="fixed"),
        "nebula_one_lru": _nebula(policy_type=OneOrderPolicy, split="fixed"),
        # Other accounting under the same planner.
        "nebula_optimistic": _nebula(OptimisticView, ttl_s=_FOR_EVER_S),
        "nebula_event_driven": _nebula(EventDrivenView),
        "nebula_predicted": _nebula(PredictedView, ttl_s=_PREDICTED_TTL_S),
        # Baselines.
        "round_robin_pic": lambda cluster, cutter, seed: RoundRobinPolicy(),
        "dynamo_kv": lambda cluster, cutter, seed: DynamoKvPrefixPolicy(seed),
        "dynamo_kv_pic": lambda cluster, cutter, seed: DynamoKvPolicy(seed),
        "prefix_pool": lambda cluster, cutter, seed: PrefixPoolOnlyPolicy(cutter),
        "prefix_pool_pic": lambda cluster, cutter, seed: PrefixPoolPolicy(cutter),
        # Bounds.
        "oracle": lambda cluster, cutter, seed: OraclePolicy(cutter),
        "omniscient": lambda cluster, cutter, seed: OmniscientPolicy(cutter),
    }
)

BASELINES = ("round_robin_pic", "dynamo_kv", "dynamo_kv_pic", "prefix_pool", "prefix_pool_pic")
"""Of these the one with the lowest median TTFT is the strongest baseline of a cell."""


def find_policy(name: str) -> PolicyFactory:
    """
    Raises:
        CellError: no such policy.
    """
    if name not in POLICIES:
        raise CellError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name]
