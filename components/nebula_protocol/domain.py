"""The domain: everything that must be equal for KV of one worker to mean the same in another."""

import hashlib

import msgspec

from nebula_protocol.ids import DomainId


class Domain(msgspec.Struct, frozen=True, kw_only=True):
    """Announced by each worker. KV never crosses between two domains.

    The tenant's `cache_salt` is part of a request's domain, not of a worker's: see `tenant_domain`.
    """

    model: str
    revision: str = ""
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    block_size_tokens: int
    kv_layout: str = "paged"
    tensor_parallel: int = 1
    rope: str = ""
    lora: str = ""

    @property
    def domain_id(self) -> DomainId:
        """16 hexadecimal digits over all fields."""
        return DomainId(hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16])


def tenant_domain(domain_id: DomainId, cache_salt: str) -> DomainId:
    """The domain of a tenant's requests: tenants with different salts share nothing."""
    return DomainId(f"{domain_id}/{hashlib.sha256(cache_salt.encode()).hexdigest()[:16]}") if cache_salt else domain_id
