"""Settings models seen as trees of dotted keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from nebula_serve.graph import ServiceSpec

MAX_REPLICAS = 1024


@dataclass(frozen=True, slots=True)
class SettingField:
    """One settable key; `default` is None where a value must be given."""

    key: str
    type_text: str
    default: object
    doc: str


def section_model(spec: ServiceSpec) -> type[BaseModel]:
    """The service's settings model with the number of its processes as one more key."""
    if spec.replicas is None:
        return spec.settings_model
    number = Field(
        default=spec.replicas.default, ge=1, le=MAX_REPLICAS, description="Number of processes of this service."
    )
    fields: dict[str, object] = {spec.replicas.key: (int, number)}
    # create_model's overloads describe each field as a keyword of its own.
    return create_model(spec.name, __base__=spec.settings_model, **fields)  # type: ignore[call-overload, no-any-return]


def nested_model(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model that `key` holds, or None where it holds a plain value or one of several models."""
    return _single_model(model.model_fields[key].annotation)


def list_fields(model: type[BaseModel], prefix: str = "") -> Iterator[SettingField]:
    """Every settable key, nested ones dotted, in the order of their definition."""
    for key, info in model.model_fields.items():
        inner = _single_model(info.annotation)
        if inner is not None:
            yield from list_fields(inner, f"{prefix}{key}.")
        else:
            default = None if info.is_required() else info.get_default(call_default_factory=True, validated_data={})
            yield SettingField(f"{prefix}{key}", _type_text(info), default, info.description or "")


def _single_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = get_origin(annotation)
    if origin is Annotated:
        return _single_model(get_args(annotation)[0])
    if origin in (Union, UnionType):
        models = [_single_model(part) for part in get_args(annotation) if part is not NoneType]
        return models[0] if len(models) == 1 else None
    return None


def _type_text(info: FieldInfo) -> str:
    bounds = [bound for rule in info.metadata if (bound := _bound_text(rule))]
    return " ".join([_annotation_text(info.annotation), *bounds])


def _bound_text(rule: object) -> str:
    match rule:
        case Ge(ge=bound):
            return f">={bound}"
        case Gt(gt=bound):
            return f">{bound}"
        case Le(le=bound):
            return f"<={bound}"
        case Lt(lt=bound):
            return f"<{bound}"
        case _:
            return ""


def _annotation_text(annotation: object) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in get_args(annotation))
    if origin in (Union, UnionType):
        return " | ".join("null" if part is NoneType else _annotation_text(part) for part in get_args(annotation))
    if origin in (tuple, list, set, frozenset):
        return f"list of {_annotation_text(get_args(annotation)[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and origin is None:
        return annotation.__name__
    return str(annotation)
