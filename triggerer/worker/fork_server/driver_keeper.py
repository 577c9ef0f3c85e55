"""Opens the Spark driver that the runs of a worker share, lends it to their processes, and ends it."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from triggerer.processes.descendants import kill
from triggerer.worker.failures import storable
from triggerer.worker.fork_server.children import Child
from triggerer.worker.fork_server.control import Control, Message
from triggerer.worker.fork_server.drivers import Driver
from triggerer.worker.fork_server.opening import open_driver
from triggerer.worker.fork_server.preloading import FOR_SPARK

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

logger = logging.getLogger(__name__)

_GRACE_S: Final = 10.0
"""A dropped JVM has this time to remove its temporary files and to end. Then it is killed."""
_LOOK_EVERY_S: Final = 0.05


class Server(Protocol):
    """The methods of the fork server that `DriverKeeper` calls."""

    @property
    def next(self) -> Child | None: ...
    def tell(self, kind: str, **fields: Any) -> None: ...
    def after(self, seconds: float, function: Callable[[], None]) -> None: ...
    def watch(self, descriptor: int, on_ready: Callable[[], None]) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def fork_opener(self, live: Callable[[Control], None]) -> Child: ...
    def show(self, lines: bytes) -> None: ...
    def replace_next(self) -> None: ...
    def preload(self, names: tuple[str, ...]) -> None: ...
    def is_child(self, child: Child) -> bool: ...


class _Question(NamedTuple):
    child: Child
    number: int


class DriverKeeper:
    """Opens, lends and ends Spark drivers. Starts the training (`jvm/training.py`), after which Spark starts faster."""

    def __init__(self, server: Server, setup: dict[str, Any]) -> None:
        self._server = server
        self._setup = setup
        self._driver: Driver | None = None
        self._former: list[Driver] = []
        """Drivers that were dropped and have not ended."""
        self._opener: Child | None = None
        self._error: str | None = None
        self._warms = False
        self._asked: list[_Question] = []
        self._training: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> set[int]:
        """The ids of processes that outlive a run: JVMs, and the process that makes the archive of Spark's classes."""
        drivers = [*self._former, *filter(None, [self._driver])]
        found = {driver.pid for driver in drivers if driver.pid is not None}
        return found | ({self._training.pid} if self._training is not None else set())

    # Requests of the executor.

    def warm(self) -> None:
        """Open a driver before a run needs the driver.

        The executor receives `warmed` once the next run's process has attached to the driver. If this fails, `warmed`
        has an error. With Spark Connect, no driver is opened, and `warmed` comes at once.
        """
        self._server.preload(FOR_SPARK)
        try:
            is_connect = self._is_connect()
        except Exception as error:  # noqa: BLE001 - the settings contradict each other: a run gets this error, too
            self._server.tell("warmed", error=storable(str(error)))
            return
        if is_connect:
            # A Spark Connect server runs already, and each run opens a session of its own there.
            self._server.tell("spark", open=True)
            self._server.tell("warmed", error=None)
            return
        self._warms = True
        if self._driver is None or not self._driver.is_usable:
            self._open()
        else:
            self._push_to_next()

    def _is_connect(self) -> bool:
        from triggerer.worker.spark.settings import CONNECT, mode_of

        return mode_of(self._settings()) == CONNECT

    def _settings(self) -> SparkSettings:
        from triggerer.config import SparkSettings

        return SparkSettings.from_json(self._setup["spark"])

    def _tell_warmed(self, error: str | None) -> None:
        if self._warms:
            self._warms = False
            self._server.tell("warmed", error=error)

    # Requests of the processes of runs.

    def push(self, child: Child) -> None:
        """Tell the next run's process to attach, if there is a driver."""
        if self._driver is not None and self._driver.is_usable and child.driver_pid is None:
            child.driver_pid = self._driver.pid
            child.control.send("driver", driver=self._driver.shared)

    def _push_to_next(self) -> None:
        child = self._server.next
        if child is not None and child.may_begin:
            self.push(child)

    def hear(self, child: Child, heard: Message) -> None:
        """Handle a message that is about a driver."""
        fields = heard.fields
        match heard.kind:
            case "attached":
                child.is_attached = True
                self._server.tell("spark", open=True)
                self._tell_warmed(None)
            case "unusable":
                logger.warning("the driver is not used again: %s", fields["reason"])
                if self._driver is not None and self._driver.pid == fields["pid"]:
                    self._drop_driver()
                self._tell_warmed(fields["reason"])
            case "open":
                self._lend(_Question(child, fields["number"]), is_fresh=fields["fresh"])
            case "how_ended":
                self._ask_how(_Question(child, fields["number"]), **fields["about"])
            case "started" if self._driver is not None:
                self._driver.pid = fields["pid"]
            case "output":
                self._send_output(_Question(child, fields["number"]), fields["wait_s"])
            case "opened" if self._driver is not None:
                self._on_opened(self._driver, fields["driver"])
            case "failed":
                self._error = fields["error"]
            case _:
                raise ValueError(heard.kind)

    def _lend(self, question: _Question, *, is_fresh: bool) -> None:
        driver = self._driver
        if is_fresh and driver is not None and driver.shared is not None:
            # A driver that is still being opened is fresh: no process has used it.
            self._drop_driver()
            driver = None
        if driver is not None and driver.is_usable:
            self._answer(question, driver=driver.shared)
            return
        self._asked.append(question)
        if self._opener is None:
            self._open()

    def _answer(self, question: _Question, **fields: Any) -> None:
        if self._server.is_child(question.child):
            question.child.control.send("reply", number=question.number, **fields)

    # Opening a driver.

    def _open(self) -> None:
        if self._opener is not None:
            return
        self._drop_driver()
        self._error = None
        driver = Driver()
        warms = self._warms
        try:
            self._opener = self._server.fork_opener(
                lambda control: open_driver(control, driver, self._setup, warms=warms)
            )
        except OSError as error:
            driver.close_theirs()
            driver.close()
            self._fail(f"Spark cannot be started: {error}")
            return
        driver.close_theirs()
        self._driver = driver
        self._server.watch(driver.output, lambda: self._read_output(driver))

    def _on_opened(self, driver: Driver, shared: dict[str, Any]) -> None:
        trains = shared.pop("trains")
        driver.shared = shared
        self._server.tell("spark", open=True)
        asked, self._asked = self._asked, []
        for question in asked:
            self._answer(question, driver=shared)
        self._push_to_next()
        if trains:
            from triggerer.worker.spark.jvm.training import TRAINING_AFTER

            self._server.after(TRAINING_AFTER.total_seconds(), lambda: self._train(driver))

    def on_opener_end(self, child: Child, code: int) -> None:
        """Handle the end of the process that opened a driver. The JVM is a child of the fork server from now on."""
        self._opener = None
        if self._driver is not None and self._driver.shared is None:
            self._drop_driver()
            self._fail(self._error or f"the process that opens Spark ended with code {code}")
        elif self._asked:
            # The driver was dropped before its opener ended, and processes wait for another driver.
            self._open()

    def _fail(self, error: str) -> None:
        asked, self._asked = self._asked, []
        for question in asked:
            self._answer(question, driver=None, error=error)
        self._tell_warmed(storable(error))

    # Ending a driver.

    def on_end(self, pid: int, code: int) -> None:
        """Handle the end of a JVM, or of the process that makes the archive of Spark's classes."""
        if self._training is not None and self._training.pid == pid:
            self._end_training()
        for driver in [*self._former, *filter(None, [self._driver])]:
            if driver.pid == pid:
                driver.code = code
                self._read_output(driver)
                self._forget(driver)

    def _drop_driver(self) -> None:
        """Let the driver's JVM end. No further process attaches to it."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        driver.drop()
        self._former.append(driver)
        if driver.shared is not None:
            self._server.tell("spark", open=False)
        self._end_training()
        child = self._server.next
        if child is not None and child.driver_pid is not None and child.driver_pid == driver.pid:
            self._server.replace_next()
        if driver.pid is None or driver.has_ended():
            self._forget(driver)
        else:
            self._server.after(_GRACE_S, lambda: self._end_late(driver))

    def _end_late(self, driver: Driver) -> None:
        if driver in self._former and driver.pid is not None:
            kill(driver.pid)

    def _forget(self, driver: Driver) -> None:
        """Close the pipes of a driver whose JVM has ended. Remember how the JVM ended."""
        if driver is self._driver:
            self._drop_driver()
            return
        if driver in self._former:
            self._former.remove(driver)
            with suppress(KeyError):
                self._server.unwatch(driver.output)
            driver.close()
            self._ended = driver

    _ended: Driver | None = None
    """The last driver whose JVM has ended."""

    def _find(self, pid: int) -> Driver | None:
        known = [self._driver, *self._former, self._ended]
        return next((one for one in known if one is not None and one.pid == pid), None)

    def _ask_how(self, question: _Question, pid: int, patience_s: float) -> None:
        """Reply how a driver ended; None if it is unknown, or still alive after `patience_s`."""
        driver = self._find(pid)
        how = None if driver is None else driver.how_ended()
        if how is None and driver is not None and patience_s > 0:
            left = patience_s - _LOOK_EVERY_S
            self._server.after(_LOOK_EVERY_S, lambda: self._ask_how(question, pid, left))
            return
        self._answer(question, how=how)

    # Reading a driver's output.

    def _read_output(self, driver: Driver) -> None:
        for text in driver.read():
            self._server.show(text)
        if driver.has_closed_output:
            with suppress(KeyError):
                self._server.unwatch(driver.output)

    def _send_output(self, question: _Question, wait_s: float) -> None:
        driver = self._driver
        if driver is None:
            self._answer(question, lines=[], is_out_of_memory=False)
            return
        if wait_s > 0 and not driver.has_ended():
            left = wait_s - _LOOK_EVERY_S
            self._server.after(_LOOK_EVERY_S, lambda: self._send_output(question, left))
            return
        with suppress(OSError):
            self._read_output(driver)
        lines = driver.lines
        self._answer(question, lines=lines.last_lines, is_out_of_memory=lines.is_out_of_memory)

    # The training is a process that makes the archive of Spark's classes: see `jvm/training.py`.

    def _train(self, driver: Driver) -> None:
        from triggerer.worker.spark.jvm.training import start_training

        if driver is self._driver and driver.is_usable and self._training is None:
            self._training = start_training(Path(self._setup["home"]))

    def _end_training(self) -> None:
        training, self._training = self._training, None
        if training is not None and training.stdin is not None:
            # The training gives up when its standard input ends.
            training.stdin.close()

    def close_in_child(self) -> None:
        """In a forked child: close the descriptors that only the fork server may have, see `Driver.close_in_child`."""
        for driver in [*self._former, *filter(None, [self._driver])]:
            driver.close_in_child()
        if self._training is not None and self._training.stdin is not None:
            self._training.stdin.close()
