"""Settings are what users type: every model is closed, frozen and says what each key means."""

import importlib
import pkgutil
from types import ModuleType

import pytest
from pydantic import BaseModel

import nebula_bench
import nebula_cli
import nebula_protocol
import nebula_router
import nebula_serve
import pic_worker

PACKAGES = (nebula_protocol, nebula_router, pic_worker, nebula_serve, nebula_bench, nebula_cli)


def settings_models(package: ModuleType) -> dict[str, type[BaseModel]]:
    """Every pydantic model defined in a package, by qualified name; skips modules that run when imported."""
    found: dict[str, type[BaseModel]] = {}
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if info.name.endswith("__main__") or ".adapters." in info.name:
            continue
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == info.name:
                found[f"{info.name}.{value.__name__}"] = value
    return found


@pytest.fixture(scope="module")
def models() -> dict[str, type[BaseModel]]:
    return {name: model for package in PACKAGES for name, model in settings_models(package).items()}


def test_the_settings_of_router_and_worker_are_found(models: dict[str, type[BaseModel]]) -> None:
    assert {"nebula_router.settings.RouterSettings", "pic_worker.settings.WorkerSettings"} <= models.keys()


def test_every_key_is_documented(models: dict[str, type[BaseModel]]) -> None:
    keys = {f"{name}.{key}": info for name, model in models.items() for key, info in model.model_fields.items()}
    assert not [name for name, info in keys.items() if not info.description]


def test_unknown_keys_are_refused_and_values_are_fixed(models: dict[str, type[BaseModel]]) -> None:
    configs = {name: model.model_config for name, model in models.items()}
    assert not [name for name, config in configs.items() if config.get("extra") != "forbid" or not config.get("frozen")]
