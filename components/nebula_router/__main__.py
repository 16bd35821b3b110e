"""Entry point: `python -m nebula_router --config-file FILE`."""

import sys

import uvloop

from nebula_process.logs import configure_logs
from nebula_process.settings_file import SettingsFileError, load_settings
from nebula_router.adapters.app import run
from nebula_router.errors import StartError
from nebula_router.settings import RouterSettings


def main() -> None:
    try:
        settings = load_settings(
            RouterSettings,
            sys.argv[1:],
            module="nebula_router",
            description="Nebula's router. Normally started by `dynamo serve`.",
        )
        configure_logs(settings.log_level)
        uvloop.run(run(settings))
    except (SettingsFileError, StartError) as error:
        sys.exit(f"nebula_router: {error}")


if __name__ == "__main__":
    main()
