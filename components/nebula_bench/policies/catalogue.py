"""Every policy by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nebula_bench.cluster.settings import ClusterSettings
from nebula_bench.errors import CellError
from nebula_bench.policies.dynamo_kv import DynamoKvPolicy, DynamoKvPrefixPolicy
from nebula_bench.policies.nebula import NebulaPolicy, OneOrderPolicy
from nebula_bench.policies.oracle import OmniscientPolicy, OraclePolicy
from nebula_bench.policies.policy import Policy
from nebula_bench.policies.prefix_pool import PrefixPoolOnlyPolicy, PrefixPoolPolicy
from nebula_bench.policies.round_robin import RoundRobinPolicy
from nebula_protocol.cutting import CutterConfig

PolicyFactory = Callable[[ClusterSettings, CutterConfig, int], Policy]
"""(cluster, cutter, seed) to a fresh policy."""


def _nebula(policy_type: type[NebulaPolicy] = NebulaPolicy, **router: object) -> PolicyFactory:
    def make(cluster: ClusterSettings, cutter: CutterConfig, seed: int) -> Policy:
        return policy_type(cluster.router.model_copy(update=router), cutter)

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
        "nebula_one_lru": _nebula(OneOrderPolicy, split="fixed"),
        # Other accounting under the same planner.
        "nebula_optimistic": _nebula(accounting="optimistic"),
        "nebula_event_driven": _nebula(accounting="events"),
        "nebula_predicted": _nebula(accounting="predicted"),
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
