"""The services that graphs are made of."""

from nebula_router.settings import RouterSettings
from nebula_serve.frontend import FrontendSettings, frontend_command
from nebula_serve.graph import ReadyKind, Replicas, ServiceSpec
from nebula_serve.process_plan import python_module
from pic_worker.settings import WorkerSettings

_ROUTER = {
    "namespace": "namespace",
    "pool_namespace": "pool_namespace",
    "model_path": "model_path",
    "model_name": "model_name",
    "log_level": "log_level",
    "pic": "pic",
    "cut": "cut",
}
_WORKER = {
    "model_path": "model_path",
    "model_name": "model_name",
    "pool_namespace": "pool_namespace",
    "engine": "engine",
    "log_level": "log_level",
    "pic": "pic",
    "block_size_tokens": "block_size_tokens",
    "context_tokens": "context_tokens",
    "sim.model": "sim_model",
    "sim.dtype": "sim_dtype",
    "sim.system": "sim_system",
    "sim.time_scale": "time_scale",
    "cut": "cut",
}

FRONTEND = ServiceSpec(
    name="Frontend",
    description="Dynamo's HTTP frontend: the OpenAI API, chat template, tokenizer.",
    settings_model=FrontendSettings,
    command=frontend_command,
    ready=ReadyKind.MODEL_LISTED,
    inherits={"namespace": "namespace", "block_size_tokens": "block_size_tokens"},
)
ROUTER = ServiceSpec(
    name="Router",
    description="Decides for each request where to prefill, and what to reuse, fetch or compute there.",
    settings_model=RouterSettings,
    command=python_module("nebula_router"),
    replicas=Replicas(),
    inherits=_ROUTER,
    metrics_port_key="metrics_port",
)
PREFILL_WORKER = ServiceSpec(
    name="PrefillWorker",
    description="Computes prompts; keeps prefix blocks and position-independent segments.",
    settings_model=WorkerSettings,
    command=python_module("pic_worker"),
    replicas=Replicas(),
    defaults={"role": "prefill", "component": "prefill"},
    # Out of the frontend's sight in `graphs:nebula`: the router is the model's prefill stage.
    inherits={**_WORKER, "namespace": "pool_namespace"},
    secret_section="data_plane",
    gpus_key="vllm.tensor_parallel",
    metrics_port_key="metrics_port",
)
DECODE_WORKER = ServiceSpec(
    name="DecodeWorker",
    description="Takes a prefilled prompt over and generates the answer.",
    settings_model=WorkerSettings,
    command=python_module("pic_worker"),
    replicas=Replicas(),
    defaults={"role": "decode", "component": "decode"},
    inherits={**_WORKER, "namespace": "namespace"},
    gpus_key="vllm.tensor_parallel",
    metrics_port_key="metrics_port",
)
