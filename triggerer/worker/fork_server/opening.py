"""The process that opens a driver: it starts the JVM, opens Spark's context, reports to the fork server, and ends."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import Any

from triggerer.errors import TriggererError
from triggerer.worker.fork_server.control import Control
from triggerer.worker.fork_server.drivers import Driver

logger = logging.getLogger(__name__)


class _ReadElsewhere:
    """The JVM's output. The fork server reads the pipe, so this process asks the fork server for the last lines."""

    def __init__(self, control: Control, write_end: int) -> None:
        self._control = control
        self._numbers = itertools.count()
        self.write_end = write_end

    @property
    def last_lines(self) -> list[str]:
        lines: list[str] = self._ask(0.0)["lines"]
        return lines

    @property
    def is_out_of_memory(self) -> bool:
        return bool(self._ask(0.0)["is_out_of_memory"])

    def close_ours(self) -> None:
        """Do nothing. If the JVM does not start, a second JVM needs the writing end of the output pipe."""

    def wait_for_end(self, timeout_s: float) -> None:
        self._ask(timeout_s)

    def _ask(self, wait_s: float) -> dict[str, Any]:
        number = next(self._numbers)
        self._control.send("output", number=number, wait_s=wait_s)
        while (heard := self._control.receive()) is not None:
            if heard.kind == "reply" and heard.fields["number"] == number:
                return heard.fields
        os._exit(1)


def open_driver(control: Control, driver: Driver, setup: dict[str, Any], *, warms: bool) -> None:
    """Open the driver, and tell the fork server how to attach to the driver. The caller must then call `os._exit`.

    Args:
        warms: True: also execute a first query, see `jvm.warmup`.
    """
    driver.close_in_child()
    try:
        opened = _open(control, driver, setup, warms=warms)
    except Exception as error:
        if not isinstance(error, TriggererError):
            logger.exception("Spark could not be opened")
        control.send("failed", error=str(error)[:10_000])
    else:
        control.send("opened", driver=opened)


def _open(
    control: Control, driver: Driver, setup: dict[str, Any], *, warms: bool
) -> dict[str, Any]:
    from triggerer.config import SparkSettings
    from triggerer.worker.spark.jvm.gateway import JvmStreams
    from triggerer.worker.spark.jvm.warmup import warm_up
    from triggerer.worker.spark.sessions.classic import (
        driver_environment,
        find_installation,
        open_classic,
    )
    from triggerer.worker.spark.sessions.shared import share
    from triggerer.worker.spark.settings import is_local, master_of

    settings = SparkSettings.from_json(setup["spark"])
    installation = find_installation(Path(setup["home"]))

    def tell(pid: int) -> None:
        control.send("started", pid=pid)

    streams = JvmStreams(
        driver.lifeline,
        _ReadElsewhere(control, driver.write_end),
        on_start=tell,
    )
    session = open_classic(settings, installation, app_name="triggerer", streams=streams)
    if warms:
        warm_up(session)
    trains = settings.archive_classes and is_local(master_of(settings))
    return {
        **share(session, driver_environment(settings, installation)).to_json(),
        "trains": trains and not installation.archive.is_usable(),
    }
