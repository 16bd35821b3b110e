"""Entry point: `python -m pic_worker --config-file FILE`."""

import sys

import uvloop
from dynamo.common.backend import Worker

from pic_worker.adapters.dynamo.engine import PicEngine
from pic_worker.errors import StartError
from pic_worker.settings_file import load_settings


def main() -> None:
    try:
        settings = load_settings(sys.argv[1:])
        engine = PicEngine(settings)
        uvloop.run(Worker(engine, engine.worker_config()).run())
    except StartError as error:
        sys.exit(f"pic_worker: {error}")


if __name__ == "__main__":
    main()
