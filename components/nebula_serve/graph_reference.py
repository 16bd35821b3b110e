"""Finding a graph by `MODULE:NAME`."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from nebula_serve.errors import GraphNotFoundError
from nebula_serve.graph import Graph
from nebula_serve.suggest import did_you_mean

_EXAMPLE = "write it as MODULE:NAME, for example graphs:nebula"


def load_graph(reference: str, search_dirs: Iterable[Path] = ()) -> Graph:
    """Imports MODULE, from `search_dirs` too, and returns its graph NAME.

    Raises:
        GraphNotFoundError: there is no such module, it cannot be imported, or NAME is no graph in it.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise GraphNotFoundError(reference, _EXAMPLE)
    for directory in search_dirs:
        if str(directory) not in sys.path:
            sys.path.append(str(directory))
    module = _import(reference, module_name)
    found: object = vars(module).get(name)
    if not isinstance(found, Graph):
        graphs = [key for key, value in vars(module).items() if isinstance(value, Graph)]
        raise GraphNotFoundError(reference, f"{module_name} has no graph {name}; {did_you_mean(name, graphs)}")
    return found


def _import(reference: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            reason = f"no module {error.name}; {did_you_mean(module_name, ('graphs',))}; {_EXAMPLE}"
        else:
            reason = f"{module_name} needs the module {error.name}, which is not installed"
        raise GraphNotFoundError(reference, reason) from error
    except Exception as error:
        # The module is the user's own code: whatever it raises, the person at the terminal gets one line.
        reason = f"{module_name} cannot be imported: {type(error).__name__}: {error}"
        raise GraphNotFoundError(reference, reason) from error
