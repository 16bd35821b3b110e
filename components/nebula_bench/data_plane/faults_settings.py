"""Which tests show that faults between workers cost time, and nothing else."""

from pydantic import BaseModel, ConfigDict, Field


class FaultsSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tests: tuple[str, ...] = Field(
        default=(
            "tests/contract/test_data_transport_contract.py",
            "tests/integration/pic_worker/test_worker_data_plane_faults.py",
            "tests/integration/pic_worker/test_worker_transfer_faults.py",
            "tests/integration/pic_worker/test_worker_nixl_faults.py",
            "tests/integration/pic_worker/test_worker_peer_death.py",
            "tests/integration/pic_worker/test_worker_engine_transfers.py",
            "tests/e2e/test_nebula_data_plane_graph.py",
        ),
        min_length=1,
    )
    """Files of pytest, from the project's folder."""
