"""Many assignments become one checked settings model for each service; the later of two assignments wins."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nebula_serve.assignments import Assignment
from nebula_serve.errors import SettingsError, UnknownKeyError
from nebula_serve.graph import Graph, ServiceSpec
from nebula_serve.schema import nested_model, section_model
from nebula_serve.shared_settings import SHARED_SECTION, CommonSettings

_WANTS_TEXT = frozenset({"string_type", "path_type"})


@dataclass(frozen=True, slots=True)
class ResolvedService:
    spec: ServiceSpec
    settings: BaseModel
    """The spec's section model: its settings and, for a service with replicas, their number."""
    num_processes: int

    def process_settings(self, update: Mapping[str, object] | None = None) -> BaseModel:
        """The settings of one process, without the number of processes and with some values replaced."""
        replicas_key = {self.spec.replicas.key} if self.spec.replicas else set()
        values = self.settings.model_dump(exclude=replicas_key) | dict(update or {})
        return self.spec.settings_model.model_validate(values)


@dataclass(frozen=True, slots=True)
class ResolvedGraph:
    graph: Graph
    common: CommonSettings
    services: tuple[ResolvedService, ...]
    """In the order of the graph: planes first."""


def resolve_common(graph: Graph, assignments: Sequence[Assignment]) -> CommonSettings:
    """The shared section. Names in every other section are checked as well, so that typos show before anything runs.

    Raises:
        SettingsError: an unknown key or a refused value.
    """
    for spec in graph.all_services():
        _expand_section(section_model(spec), spec.name, assignments)
    common = _validate(CommonSettings, SHARED_SECTION, assignments)
    if not isinstance(common, CommonSettings):
        raise TypeError("the shared section has one fixed model")
    return common


def resolve_services(graph: Graph, common: CommonSettings, assignments: Sequence[Assignment]) -> ResolvedGraph:
    """
    Raises:
        SettingsError: an unknown key, a refused or missing value.
    """
    services = []
    for spec in graph.all_services():
        model = section_model(spec)
        layered = [*_inherited(spec, common, assignments), *assignments]
        settings = _validate(model, spec.name, layered)
        services.append(ResolvedService(spec, settings, _num_processes(spec, settings)))
    return ResolvedGraph(graph, common, tuple(services))


def _num_processes(spec: ServiceSpec, settings: BaseModel) -> int:
    return int(settings.model_dump()[spec.replicas.key]) if spec.replicas else 1


def _inherited(spec: ServiceSpec, common: CommonSettings, assignments: Sequence[Assignment]) -> Iterator[Assignment]:
    values: Mapping[str, object] = common.model_dump()
    shared = {part.key[0]: part for part in assignments if part.section == SHARED_SECTION}
    for key, common_key in spec.inherits.items():
        if values[common_key] is None:
            continue
        source = shared.get(common_key)
        origin = f"{SHARED_SECTION}.{common_key}" + (f", {source.origin}" if source else "")
        yield Assignment(spec.name, tuple(key.split(".")), values[common_key], origin)


def _validate(model: type[BaseModel], section: str, assignments: Sequence[Assignment]) -> BaseModel:
    leaves = _expand_section(model, section, assignments)
    try:
        return model.model_validate(_as_tree(leaves))
    except ValidationError as error:
        leaves, changed = _with_raw_texts(leaves, error.errors())
        if not changed:
            raise _settings_error(section, leaves, error.errors()) from error
    try:
        return model.model_validate(_as_tree(leaves))
    except ValidationError as error:
        raise _settings_error(section, leaves, error.errors()) from error


def _expand_section(model: type[BaseModel], section: str, assignments: Iterable[Assignment]) -> list[Assignment]:
    own = (assignment for assignment in assignments if assignment.section == section)
    return [leaf for assignment in own for leaf in _expand(model, assignment)]


def _expand(model: type[BaseModel], assignment: Assignment) -> Iterator[Assignment]:
    """The assignment as one for each plain key, after a check of every name on the way.

    Raises:
        UnknownKeyError: a key that the model does not have.
        SettingsError: a key below a plain value.
    """
    inner: type[BaseModel] | None = model
    for depth, key in enumerate(assignment.key, start=1):
        if inner is None:
            # The keys below a plain mapping are free; validation judges the value.
            break
        if key not in inner.model_fields:
            path = ".".join((assignment.section, *assignment.key[:depth]))
            raise UnknownKeyError(path, inner.model_fields, assignment.origin)
        inner = nested_model(inner, key)
    if inner is None or not isinstance(assignment.value, dict):
        yield assignment
        return
    for key, value in assignment.value.items():
        yield from _expand(model, replace(assignment, key=(*assignment.key, str(key)), value=value, raw_text=None))


def _as_tree(leaves: Iterable[Assignment]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for leaf in leaves:
        branch = tree
        for key in leaf.key[:-1]:
            below = branch.get(key)
            below = dict(below) if isinstance(below, dict) else {}
            branch[key] = below
            branch = below
        branch[leaf.key[-1]] = leaf.value
    return tree


def _with_raw_texts(leaves: list[Assignment], errors: list[ErrorDetails]) -> tuple[list[Assignment], bool]:
    """Values that YAML read as numbers, dates or booleans where a text is wanted become what was typed."""
    refused = {tuple(str(part) for part in error["loc"]) for error in errors if error["type"] in _WANTS_TEXT}
    texts = [
        replace(leaf, value=leaf.raw_text, raw_text=None) if leaf.raw_text is not None and leaf.key in refused else leaf
        for leaf in leaves
    ]
    return texts, texts != leaves


def _settings_error(section: str, leaves: Sequence[Assignment], errors: list[ErrorDetails]) -> SettingsError:
    first = errors[0]
    location = tuple(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ").replace("Input should", "should")
    reason = reason.replace("be a valid tuple", "be a list such as [a, b]")
    value = first["input"]
    if first["type"] != "missing" and not isinstance(value, dict):
        reason += f", not {value!r}"
    if len(errors) > 1:
        reason += f"; {len(errors) - 1} more after it"
    origin = _origin_of(location, leaves)
    return SettingsError(".".join((section, *location)), reason, origin)


def _origin_of(location: tuple[str, ...], leaves: Sequence[Assignment]) -> str:
    for leaf in reversed(leaves):
        shared_length = min(len(leaf.key), len(location))
        if leaf.key[:shared_length] == location[:shared_length]:
            return leaf.origin
    return "default"
