"""Tenants behind `graphs:nebula` and `graphs:dynamo_kv`: nothing of one tenant's KV serves another."""

from collections.abc import Iterator

import pytest
from support.running_graph import Json, RunningGraph, eventually
from support.tenants import NAMINGS, TenantNaming, ask_as

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_protocol.plan import Source

pytestmark = pytest.mark.e2e

GRAPHS = {
    "nebula": ("-f", "configs/nebula-2p1d-sim.yaml"),
    "dynamo_kv": ("-f", "configs/dynamo_kv-7p1d-sim.yaml", "--PrefillWorker.workers=2", "--Common.time_scale=0.01"),
}


@pytest.fixture(scope="module", params=GRAPHS)
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    name: str = request.param
    graph = RunningGraph(tmp_path_factory.mktemp(name), name, *GRAPHS[name])
    try:
        graph.wait_until_ready()
        yield graph
    finally:
        graph.stop()


def reused_tokens(receipt: Json) -> int:
    """What was there before the request; what helpers computed for this very request is not."""
    made_for_it = (s["end"] - s["start"] for s in receipt["segments"] if s["done"] == Source.COMPUTE_AT)
    reused: int = receipt["prompt_tokens"] - receipt["computed_tokens"] - sum(made_for_it)
    return reused


@pytest.mark.parametrize("naming", NAMINGS, ids=lambda naming: naming.name)
def test_a_tenant_finds_nothing_of_another_and_all_of_its_own(graph: RunningGraph, naming: TenantNaming) -> None:
    vocabulary = PseudoVocabulary()
    system, passage = (vocabulary.tokens(f"{naming.name} {part}", 512).tolist() for part in ("system", "passage"))
    numbers = iter(range(1_000))

    def reused(salt: str) -> int:
        """Of a prompt with a known beginning and a known passage behind a question that is always new."""
        question = vocabulary.tokens(f"{naming.name} question {next(numbers)}", 64).tolist()
        prompt = [*system, *question, *passage, *question]
        return reused_tokens(ask_as(graph, naming, salt, prompt, [[0, 512], [576, 1088]]))

    assert reused("one") == 0
    eventually(lambda: reused("one") >= 1024, "the tenant finds its own beginning and passage")
    # As many as there are workers, so that each was asked; each by a tenant that never asked before.
    assert [reused(f"other {number}") for number in range(6)] == [0] * 6


def test_two_ways_that_name_different_tenants_are_refused(graph: RunningGraph) -> None:
    nvext = {"cache_salt": "one", "annotations": ["nebula.salt=two"]}
    response = graph.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "nvext": nvext},
    )
    assert response.status_code == 400
    assert "different tenants" in response.text
