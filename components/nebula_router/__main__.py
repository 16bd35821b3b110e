"""Entry point: `python -m nebula_router --config-file FILE`."""

import sys

import uvloop

from nebula_router.adapters.app import run
from nebula_router.errors import StartError
from nebula_router.settings_file import load_settings


def main() -> None:
    try:
        uvloop.run(run(load_settings(sys.argv[1:])))
    except StartError as error:
        sys.exit(f"nebula_router: {error}")


if __name__ == "__main__":
    main()
