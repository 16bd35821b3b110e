"""Entry point: `python -m pic_worker --config-file FILE`."""

import sys

from nebula_process.logs import configure_logs
from nebula_process.settings_file import SettingsFileError, load_settings
from pic_worker.errors import StartError
from pic_worker.settings import WorkerSettings


def main() -> None:
    try:
        settings = load_settings(
            WorkerSettings,
            sys.argv[1:],
            module="pic_worker",
            description="One prefill or decode worker. Normally started by `dynamo serve`.",
        )
        configure_logs(settings.log_level)
        # Here, since vLLM's own processes import this file again and need none of it.
        from pic_worker.adapters.dynamo.engine import run

        run(settings)
    except (SettingsFileError, StartError) as error:
        sys.exit(f"pic_worker: {error}")


if __name__ == "__main__":
    main()
