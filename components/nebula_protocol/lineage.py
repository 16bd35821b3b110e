"""Which requests may share prefix blocks.

KV that position-independent reuse touched is approximate and must never serve a request that asked for exact results.
Engines keep the two apart by the salt of a block's hash. The common case (reuse on, no tenant) is the unsalted one, so
that its block hashes are plain Dynamo hashes.
"""

from nebula_protocol.fusion import Fusion


def lineage_of(*, pic: bool, deployment_has_pic: bool, cache_salt: str, fusion: Fusion | None = None) -> str:
    """The salt under which a request's prefix blocks are cached; empty for the common lineage.

    No choice of `cache_salt` brings two lineages together: the kind stands before it.

    Args:
        fusion: That the request asks for; None for the worker's own. KV that one fusion made is of another quality
            than that of others, so whoever names a fusion shares blocks with those that name the same.
    """
    if not deployment_has_pic:
        return f"tenant/{cache_salt}" if cache_salt else ""
    if not pic:
        return f"exact/{cache_salt}"
    if fusion is not None:
        return f"fusion/{fusion}/{cache_salt}"
    return f"tenant/{cache_salt}" if cache_salt else ""
