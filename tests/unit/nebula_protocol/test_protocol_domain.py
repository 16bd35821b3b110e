from itertools import product

import msgspec
import pytest

from nebula_protocol.domain import Domain, tenant_domain
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, cacheblend, legolink
from nebula_protocol.ids import DomainId
from nebula_protocol.lineage import lineage_of

DOMAIN = Domain(model="m", block_size_tokens=16)


def test_equal_domains_have_one_id_of_16_hexadecimal_digits() -> None:
    assert DOMAIN.domain_id == Domain(model="m", block_size_tokens=16).domain_id
    assert len(bytes.fromhex(DOMAIN.domain_id)) == 8


@pytest.mark.parametrize("field", msgspec.structs.fields(Domain), ids=lambda field: field.name)
def test_every_field_makes_another_domain(field: msgspec.structs.FieldInfo) -> None:
    other = msgspec.structs.replace(DOMAIN, **{field.name: 3 if field.type is int else "other"})
    assert other.domain_id != DOMAIN.domain_id


def test_tenants_share_nothing_and_requests_without_a_salt_share_the_workers_domain() -> None:
    domain_id = DOMAIN.domain_id
    assert tenant_domain(domain_id, "") == domain_id
    domains = {tenant_domain(DomainId(name), salt) for name in (domain_id, "other") for salt in ("", "a", "b", "/")}
    assert len(domains) == 8


def test_the_common_lineage_has_no_salt() -> None:
    assert lineage_of(pic=True, deployment_has_pic=True, cache_salt="") == ""
    # Without reuse in the whole deployment all KV is exact, so that nothing must be kept apart.
    assert lineage_of(pic=False, deployment_has_pic=False, cache_salt="") == ""


def test_no_choice_of_salt_brings_exact_and_approximate_requests_or_two_tenants_together() -> None:
    salts = ("", "a", "b", "exact", "exact/", "a/exact", "exact/a", "tenant/a", "/")
    lineages = [
        lineage_of(pic=pic, deployment_has_pic=True, cache_salt=salt) for pic, salt in product((True, False), salts)
    ]
    fused = [
        lineage_of(pic=True, deployment_has_pic=True, cache_salt=salt, fusion=fusion)
        for fusion, salt in product((legolink(16), legolink(32), cacheblend(0.15), NO_FUSION, FULL_FUSION), salts)
    ]
    lineages += fused
    assert len(set(lineages)) == len(lineages)


def test_a_request_that_is_exact_in_any_case_stays_with_the_exact_ones_whatever_fusion_it_names() -> None:
    exact = lineage_of(pic=False, deployment_has_pic=True, cache_salt="a")
    assert lineage_of(pic=False, deployment_has_pic=True, cache_salt="a", fusion=legolink(8)) == exact
    plain = lineage_of(pic=False, deployment_has_pic=False, cache_salt="a")
    assert lineage_of(pic=False, deployment_has_pic=False, cache_salt="a", fusion=legolink(8)) == plain
