"""Entry point: `python -m pic_worker --config-file FILE`."""

import sys

from pic_worker.adapters.dynamo.engine import run
from pic_worker.errors import StartError
from pic_worker.settings_file import load_settings


def main() -> None:
    try:
        run(load_settings(sys.argv[1:]))
    except StartError as error:
        sys.exit(f"pic_worker: {error}")


if __name__ == "__main__":
    main()
