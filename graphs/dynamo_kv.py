"""The baseline: the same workers, seen by Dynamo's frontend and chosen by its own KV router."""

from graphs.services import DECODE_WORKER, FRONTEND, PREFILL_WORKER
from nebula_serve.graph import Graph
from nebula_serve.nats import NATS

GRAPH = Graph(
    name="dynamo_kv",
    description="Dynamo's frontend with its KV router, prefill and decode workers that cut segments themselves.",
    planes=(NATS,),
    services=(FRONTEND, PREFILL_WORKER, DECODE_WORKER),
    engines=("vllm", "sim"),
    defaults={
        "Common.namespace": "nebula",
        "Common.pool_namespace": "nebula",
        "Common.block_size_tokens": 16,
        "Frontend.router_mode": "kv",
        "PrefillWorker.workers": 2,
        "DecodeWorker.workers": 1,
    },
)
