"""What `dynamo serve` shows people: the dry run, the settings' help, the ready message."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill

import yaml
from pydantic import BaseModel

from nebula_serve.assignments import default_values
from nebula_serve.graph import Graph
from nebula_serve.process_plan import ProcessSpec
from nebula_serve.resolve import ResolvedGraph
from nebula_serve.schema import list_fields, section_model
from nebula_serve.shared_settings import SHARED_SECTION, CommonSettings

_WIDTH = 110


def dry_run_yaml(resolved: ResolvedGraph, processes: Sequence[ProcessSpec]) -> str:
    """`configuration` can be saved and given back with -f; `processes` is what would run, in order of start."""
    configuration = {SHARED_SECTION: _plain(resolved.common)}
    configuration |= {service.spec.name: _plain(service.settings) for service in resolved.services}
    document = {
        "graph": resolved.graph.name,
        "configuration": configuration,
        "processes": [
            {"name": process.name, "argv": list(process.argv), "env": dict(process.environment)}
            for process in processes
        ],
    }
    return yaml.safe_dump(document, sort_keys=False, width=_WIDTH, allow_unicode=True)


def settings_help(graph: Graph) -> str:
    """Every settable key of the graph with its type, default and meaning."""
    defaults = default_values(graph)
    lines = [f"Settings of graph {graph.name}: --Service.key=value, NEBULA_<SERVICE>__<KEY>, or a YAML section.", ""]
    lines.append(f"{SHARED_SECTION}: what several services share.")
    lines += _field_lines(SHARED_SECTION, CommonSettings, defaults)
    for spec in graph.all_services():
        lines += ["", f"{spec.name}: {spec.description}", *_field_lines(spec.name, section_model(spec), defaults)]
    return "\n".join(lines)


def ready_text(url: str | None, model_name: str, num_processes: int, took_s: float) -> str:
    """The URL and a command that asks the model something."""
    if url is None:
        return f"\nReady: {num_processes} processes in {took_s:.1f} s. Ctrl-C stops them.\n"
    body = {
        "model": model_name,
        "messages": [{"role": "user", "content": "What does a router do?"}],
        "max_tokens": 32,
    }
    return (
        f"\nReady: {model_name} at {url} ({num_processes} processes in {took_s:.1f} s). Ctrl-C stops it.\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}\n"
    )


def _process_entry(process: ProcessSpec) -> dict[str, object]:
    entry: dict[str, object] = {"name": process.name, "argv": list(process.argv)}
    if process.metrics_url:
        entry["metrics_url"] = process.metrics_url
    return entry | {"env": dict(process.environment)}


def _field_lines(section: str, model: type[BaseModel], defaults: Mapping[str, object]) -> Iterator[str]:
    for field in list_fields(model):
        path = f"{section}.{field.key}"
        yield f"  --{path}={_scalar(defaults.get(path, field.default))}  ({field.type_text})"
        if field.doc:
            yield fill(field.doc, _WIDTH, initial_indent="      ", subsequent_indent="      ")


def _scalar(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False)


def _plain(settings: BaseModel) -> object:
    return json.loads(settings.model_dump_json())
