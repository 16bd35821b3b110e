"""One engine for all tests of a number of ranks."""

from collections.abc import Iterator

import pytest
from support.connected_engine import ConnectedEngine, connected_engine


@pytest.fixture(scope="session", params=[1, 2], ids=["one_rank", "two_ranks"])
def started_engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectedEngine]:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    with connected_engine(tmp_path_factory.mktemp("tiny-model"), tensor_parallel=request.param) as engine:
        yield engine


@pytest.fixture
def engine(started_engine: ConnectedEngine) -> Iterator[ConnectedEngine]:
    """With nothing cached; behind the test, with nothing left in use."""
    started_engine.reset()
    yield started_engine
    started_engine.finish()
    started_engine.assert_nothing_in_use()
