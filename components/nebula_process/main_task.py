"""A process is no use without its main loop."""

import asyncio
import os

import structlog

log = structlog.get_logger()

_FAILED = 1


def exit_when_failed(task: "asyncio.Task[None]") -> None:
    """Ends this process at once when `task` fails.

    Without its loop it would be registered and silent, and everyone would wait for it. Ended, its open streams break,
    so that requests go elsewhere, and it is started anew.
    """
    task.add_done_callback(_exit_if_failed)


def _exit_if_failed(task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.critical("main_task_failed", task=task.get_name(), exc_info=error)
        os._exit(_FAILED)
