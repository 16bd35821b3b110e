"""Log lines of a benchmark's own process, which would stand in the middle of its tables."""

import logging
import sys

import structlog


def quiet_logs() -> None:
    """Only errors, and those on the error stream."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
