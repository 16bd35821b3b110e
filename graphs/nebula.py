"""Segments as cluster objects: Nebula's router as the prefill stage of Dynamo's frontend."""

from graphs.services import DECODE_WORKER, FRONTEND, PREFILL_WORKER, ROUTER
from nebula_serve.graph import Graph
from nebula_serve.nats import NATS

GRAPH = Graph(
    name="nebula",
    description="Dynamo's frontend, Nebula's segment-aware router, prefill and decode workers.",
    planes=(NATS,),
    services=(FRONTEND, ROUTER, PREFILL_WORKER, DECODE_WORKER),
    engines=("vllm", "sim"),
    defaults={
        "Common.namespace": "nebula",
        # Out of the frontend's sight: it would send prompts past the router to prefill workers that it sees itself.
        "Common.pool_namespace": "nebula_pool",
        "PrefillWorker.workers": 2,
        "DecodeWorker.workers": 1,
    },
)
