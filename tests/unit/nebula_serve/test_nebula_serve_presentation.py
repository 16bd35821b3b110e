"""What `dynamo serve` shows people."""

import json
import shlex
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from graphs import dynamo_kv, nebula
from nebula_serve.graph import Graph
from nebula_serve.presentation import ready_text, settings_help
from nebula_serve.schema import list_fields, nested_model, section_model


class Inner(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)
    scale: float = Field(default=1.5, gt=0, le=10)
    """Multiplies."""


class Settings(BaseModel):
    mode: Literal["a", "b"]
    inner: Annotated[Inner, "x"] = Inner()
    maybe: Inner | None = None
    either: Inner | BaseModel | None = None
    marks: tuple[str, ...] = ("x",)
    further: dict[str, int] = {}
    limit: int | None = Field(default=None, ge=1, lt=9)


def test_every_key_is_listed_with_type_bounds_default_and_meaning() -> None:
    listed = [(field.key, field.type_text, field.default) for field in list_fields(Settings)]
    assert listed == [
        ("mode", "a | b", None),
        ("inner.scale", "float >0 <=10", 1.5),
        ("maybe.scale", "float >0 <=10", 1.5),
        ("either", "Inner | BaseModel | null", None),
        ("marks", "list of str", ("x",)),
        ("further", "mapping", {}),
        ("limit", "int | null >=1 <9", None),
    ]
    assert next(field for field in list_fields(Settings) if field.key == "inner.scale").doc == "Multiplies."


def test_a_choice_of_models_is_a_plain_value() -> None:
    assert nested_model(Settings, "either") is None


@pytest.mark.parametrize("graph", [nebula, dynamo_kv], ids=lambda graph: graph.name)
def test_the_help_lists_every_settable_key_of_the_graph(graph: Graph) -> None:
    text = settings_help(graph)
    for spec in graph.all_services():
        for field in list_fields(section_model(spec)):
            assert f"--{spec.name}.{field.key}=" in text


def test_the_help_shows_the_default_of_the_graph_not_that_of_the_model() -> None:
    assert "--Frontend.router_mode=kv" in settings_help(dynamo_kv)
    assert "--DecodeWorker.role=decode" in settings_help(nebula)


def test_the_ready_message_has_a_command_that_a_shell_understands() -> None:
    text = ready_text("http://127.0.0.1:8000", "it's mine", 11, 12.34)
    command = next(line for line in text.splitlines() if line.startswith("  curl"))
    words = shlex.split(command)
    assert words[1] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(words[words.index("-d") + 1])["model"] == "it's mine"
    assert "11 processes in 12.3 s" in text


def test_a_graph_without_a_frontend_is_ready_without_a_url() -> None:
    assert "curl" not in ready_text(None, "m", 1, 0.5)
