"""Where settings come from: command line, environment, YAML files, the graph. Each value keeps its origin."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from nebula_serve.errors import ConfigFileError, ServeError, SettingsError, UnknownServiceError
from nebula_serve.graph import Graph

ENVIRONMENT_PREFIX = "NEBULA_"
_LEVEL = "__"


@dataclass(frozen=True, slots=True)
class Assignment:
    section: str
    key: tuple[str, ...]
    """Path below the section; never empty."""
    value: object
    origin: str
    """For error messages: the flag, the variable, the file."""
    raw_text: str | None = None
    """What was typed, where `value` was parsed from text: `--Common.model_name=123` may well mean a text."""

    @property
    def path(self) -> str:
        return ".".join((self.section, *self.key))


def from_graph(graph: Graph) -> list[Assignment]:
    """The services' defaults, then the graph's own."""
    defaults = {f"{spec.name}.{key}": value for spec in graph.all_services() for key, value in spec.defaults.items()}
    return [_from_path(path, value, f"graph {graph.name}") for path, value in (defaults | dict(graph.defaults)).items()]


def default_values(graph: Graph) -> dict[str, object]:
    """Dotted `Service.key` to the value that the graph gives it; keys of the settings models alone are left out."""
    return {assignment.path: assignment.value for assignment in from_graph(graph)}


def from_config_file(path: Path, sections: Iterable[str]) -> list[Assignment]:
    """
    Raises:
        ConfigFileError: the file cannot be read, is no YAML, or is no mapping of sections.
        UnknownServiceError: a section of the file is none of `sections`.
    """
    known = tuple(sections)
    assignments = []
    for section, values in _read_mapping(path).items():
        if section not in known:
            raise UnknownServiceError(str(section), known, str(path))
        if values is None:
            continue
        if not isinstance(values, dict):
            raise ConfigFileError(str(path), f"section {section} must hold `key: value` lines")
        assignments += [Assignment(str(section), (str(key),), value, str(path)) for key, value in values.items()]
    return assignments


def from_environment(environ: Mapping[str, str], sections: Iterable[str]) -> list[Assignment]:
    """Variables named NEBULA_<SERVICE>__<KEY>, nested keys with more double underscores.

    Raises:
        UnknownServiceError: a variable of this form names none of `sections`.
    """
    known = {_plain(section): section for section in sections}
    assignments = []
    for name in sorted(environ):
        service, level, key = name.removeprefix(ENVIRONMENT_PREFIX).partition(_LEVEL)
        if not name.startswith(ENVIRONMENT_PREFIX) or not level:
            continue
        origin = f"environment variable {name}"
        if _plain(service) not in known:
            raise UnknownServiceError(service, known.values(), origin)
        section = known[_plain(service)]
        path = tuple(part.lower() for part in key.split(_LEVEL))
        assignments.append(_from_text(section, path, environ[name], origin))
    return assignments


def from_command_line(overrides: Sequence[str], sections: Iterable[str]) -> list[Assignment]:
    """Flags of the form --Service.key=value.

    Raises:
        UnknownServiceError: a flag names none of `sections`.
        SettingsError: a flag lacks its key or its value.
    """
    known = tuple(sections)
    assignments = []
    for flag in overrides:
        name, equals, text = flag.partition("=")
        section, *key = name.removeprefix("--").split(".")
        if section not in known:
            raise UnknownServiceError(section, known, name)
        if not equals or not all(key):
            raise SettingsError(name.removeprefix("--"), "write it as --Service.key=value", name)
        assignments.append(_from_text(section, tuple(key), text, name))
    return assignments


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(settings, other arguments): `--Service.key=value` or `--Service.key value`, told by the dot in the flag."""
    overrides: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if not (name.startswith("--") and "." in name):
            others.append(argument)
        elif equals:
            overrides.append(argument)
        else:
            value = next(rest, None)
            overrides.append(argument if value is None else f"{argument}={value}")
    return overrides, others


def _from_path(path: str, value: object, origin: str) -> Assignment:
    section, *key = path.split(".")
    return Assignment(section, tuple(key), value, origin)


def _from_text(section: str, key: tuple[str, ...], text: str, origin: str) -> Assignment:
    try:
        value: object = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        # Not YAML at all, such as `@x` or `[a`: it can only be meant as a text.
        value = text
    return Assignment(section, key, value, origin, raw_text=text)


def _read_mapping(path: Path) -> Mapping[object, object]:
    try:
        document: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(str(path), error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigFileError(str(path), "it is not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise _yaml_error(path, error) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigFileError(str(path), "it must hold sections such as `Router:` with `key: value` lines below")
    return document


def _yaml_error(path: Path, error: yaml.YAMLError) -> ServeError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return ConfigFileError(str(path), f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}")
    return ConfigFileError(str(path), "it is not YAML")


def _plain(name: str) -> str:
    return name.replace("_", "").upper()
