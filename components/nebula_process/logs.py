"""One way to log: events with keys, on standard error."""

import logging
import os
import sys

import structlog

_FORMAT_VARIABLE = "NEBULA_LOG_FORMAT"


def configure_logs(level: str) -> None:
    """Sets up structlog for this process; `NEBULA_LOG_FORMAT=json` gives one object a line."""
    as_json = os.environ.get(_FORMAT_VARIABLE) == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
