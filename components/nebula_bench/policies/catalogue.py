"""Every policy by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from nebula_bench.cluster.settings import ClusterSettings
from nebula_bench.errors import CellError
from nebula_bench.policies.nebula import NebulaPolicy
from nebula_bench.policies.policy import Policy
from nebula_protocol.cutting import CutterConfig

PolicyFactory = Callable[[ClusterSettings, CutterConfig], Policy]


def _nebula(**router: object) -> PolicyFactory:
    return lambda cluster, cutter: NebulaPolicy(cluster.router.model_copy(update=router), cutter)


POLICIES: Mapping[str, PolicyFactory] = MappingProxyType(
    {
        "nebula": _nebula(),
        "nebula_no_parallel": _nebula(parallel_prefill=False),
        "nebula_local_only": _nebula(parallel_prefill=False, remote_reuse=False),
    }
)


def find_policy(name: str) -> PolicyFactory:
    """
    Raises:
        CellError: no such policy.
    """
    if name not in POLICIES:
        raise CellError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return POLICIES[name]
