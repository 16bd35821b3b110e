"""The router's own endpoint over Dynamo pools: `python router_dynamo_router.py NAMESPACE NUM_PREFILL`.

No NATS and no ingest: all prefill workers hold nothing, as `support.router_world` has them.
"""

import asyncio
import sys
import time

from dynamo.runtime import DistributedRuntime
from support.json_process import write_line
from support.placement_case import round_card
from support.router_outside import RecordedDecisions
from support.router_world import new_state

from nebula_protocol.ids import WorkerId
from nebula_router.adapters.dynamo.frontend_endpoint import FrontendEndpoint
from nebula_router.adapters.dynamo.worker_pool import DynamoWorkerPool
from nebula_router.metrics import RouterMetrics
from nebula_router.service import RouterService
from nebula_router.settings import RouterSettings

_POLL_S = 0.02


async def run(namespace: str, num_prefill: int) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    prefill = await DynamoWorkerPool.watch(runtime, f"{namespace}.prefill.generate")
    while len(prefill.live_workers()) < num_prefill:
        await asyncio.sleep(_POLL_S)
    state = new_state(*map(round_card, sorted(prefill.live_workers())))
    service = RouterService(
        RouterSettings(worker_wait_s=0),
        state=state,
        prefill_pool=prefill,
        decisions=RecordedDecisions(),
        metrics=RouterMetrics(),
        clock=time.monotonic,
    )
    endpoint = runtime.endpoint(f"{namespace}.router.generate")
    write_line({"event": "serving", "worker_id": endpoint.connection_id()})
    await endpoint.serve_endpoint(FrontendEndpoint(service, WorkerId(endpoint.connection_id())).generate)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
