"""Dynamo's KV routing in front of engines that keep time as Dynamo's own mock engine does, to be compared with it.

The mock engine's prefill time depends on the new tokens of a step alone, and its events are out when a step begins.
"""

from dataclasses import replace

from nebula_bench.policies.dynamo_kv import DynamoKvPrefixPolicy
from pic_worker.adapters.sim.costs import SimCosts
from pic_worker.core.engine_config import EngineConfig
from pic_worker.core.prefill_table import PrefillTable


class DynamoReplayPolicy(DynamoKvPrefixPolicy):
    @classmethod
    def worker_costs(cls, base: SimCosts) -> SimCosts:
        return replace(base, step=replace(base.step, table=without_context(base.step.table)))

    @classmethod
    def engine_config(cls, base: EngineConfig) -> EngineConfig:
        return replace(base, announces_early=True)


def without_context(table: PrefillTable) -> PrefillTable:
    """The table's times at context 0, whatever the context."""
    return replace(table, rows_s=tuple((row[0],) * len(row) for row in table.rows_s))
