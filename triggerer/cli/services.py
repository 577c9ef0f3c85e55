"""`triggerer standalone`, and one command for each part that can run as a process of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from triggerer.cli.terminal import options
from triggerer.cli.terminal.session import settings_for

if TYPE_CHECKING:
    from triggerer.service import Part

_LEAVE_AFTER_S: Final = 5.0
"""How long the process may take to exit after the service has ended. Usually it takes well under a second."""


def standalone(dags_folder: options.DagsFolder = None, config: options.Config = None) -> None:
    """Run everything in one process tree, until SIGTERM or Ctrl-C."""
    from triggerer.service import ALL_PARTS

    _serve(ALL_PARTS, config, dags_folder)


def triggerer(dags_folder: options.DagsFolder = None, config: options.Config = None) -> None:
    """Host the watchers' streams. Needs PostgreSQL; several instances divide the streams among them."""
    from triggerer.service import Part

    _serve(frozenset({Part.TRIGGERER}), config, dags_folder)


def scheduler(config: options.Config = None) -> None:
    """Create the runs that asset events and timetables ask for. Needs PostgreSQL."""
    from triggerer.service import Part

    _serve(frozenset({Part.SCHEDULER}), config, None)


def dag_processor(dags_folder: options.DagsFolder = None, config: options.Config = None) -> None:
    """Read the DAG files and follow their changes. Needs PostgreSQL."""
    from triggerer.service import Part

    _serve(frozenset({Part.DAG_PROCESSOR}), config, dags_folder)


def executor(dags_folder: options.DagsFolder = None, config: options.Config = None) -> None:
    """Execute queued runs in worker processes. Needs PostgreSQL."""
    from triggerer.service import Part

    _serve(frozenset({Part.EXECUTOR}), config, dags_folder)


def api(config: options.Config = None) -> None:
    """Serve the HTTP API and the page. Needs PostgreSQL; several API processes can run behind a load balancer."""
    from triggerer.service import Part

    _serve(frozenset({Part.API}), config, None)


def _serve(parts: frozenset[Part], config: Path | None, dags_folder: Path | None) -> None:
    from triggerer.observability.logging_setup import set_up_logging
    from triggerer.service import run

    settings = settings_for(config, dags_folder=dags_folder)
    set_up_logging(settings.core)
    run(settings, parts, on_end=_exit_before_long)


def _exit_before_long() -> None:
    """Start a timer that ends the process. Called at the end of the service.

    At exit, Python waits for the threads that run plugins' code. Without the timer, a thread that never returns would
    keep the process alive.
    """
    # A cancellation is no error: the user has pressed Ctrl-C while the service was starting.
    exit_code = 1 if isinstance(sys.exception(), Exception) else 0
    with suppress(RuntimeError):  # The system cannot start another thread, so there is no timer.
        threading.Thread(target=_leave, args=(exit_code,), name="leave", daemon=True).start()


def _leave(exit_code: int) -> None:
    import structlog

    time.sleep(_LEAVE_AFTER_S)
    structlog.get_logger(__name__).warning(
        "threads of watchers are still running; the process exits without waiting for them",
        threads=[thread.name for thread in threading.enumerate() if thread.name != "leave"],
    )
    os._exit(exit_code)
