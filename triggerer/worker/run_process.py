"""The process of one run: it waits for an order, executes the order, and ends. `fork_server/server.py` forks it.

The main thread executes the tasks: a signal ends a task at its timeout, and Python calls signal handlers only in the
main thread. Tasks that run side by side have their own threads. Another thread reads the executor's replies.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import queue
import select
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from triggerer.domain.attempts import CallbackOrder, RunOrder, Wait
from triggerer.errors import RunFailed
from triggerer.plugins.imported_since import ImportedSince
from triggerer.processes.ipc import ChildChannel
from triggerer.processes.lifelines import kill_own_group
from triggerer.worker.attempt import FileStates, WorkerContext, execute_run
from triggerer.worker.callbacks import call_back
from triggerer.worker.failures import ProcessStopped
from triggerer.worker.fork_server.control import Control
from triggerer.worker.fork_server.link import ForkServerLink
from triggerer.worker.fork_server.preloading import importable_ahead
from triggerer.worker.logs.writing import flush_output, output_into
from triggerer.worker.protocol import RunReport, message
from triggerer.worker.reporter import Reporter
from triggerer.worker.spark.jvm.connections import forget_connection
from triggerer.worker.spark_holder import SparkHolder

logger = logging.getLogger(__name__)


class RunProcess:
    """The process of one run, from its fork to its end. `live` runs in the main thread."""

    def __init__(self, channel: ChildChannel, control: Control, setup: dict[str, Any]) -> None:
        self._channel = channel
        self._reporter = Reporter(channel)
        self._link = ForkServerLink(control)
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._busy = self._is_stopping = False
        self._imported = ImportedSince()
        self._spark = SparkHolder(setup["spark"], self._link)
        self._file_states = FileStates(self._link.file_seen)
        self._context = WorkerContext(
            dags_folder=Path(setup["dags_folder"]),
            home=Path(setup["home"]),
            file_patience_s=setup["file_patience_s"],
            holds_broken=setup["holds_broken"],
            file_states=self._file_states,
            query=self.query,
            spark=self._spark,
            output_into=functools.partial(output_into, tell=self._link.accepted),
            on_start=self._reporter.started,
            on_wait=self._on_wait,
            on_progress=self._reporter.progress,
            on_launch=self._reporter.launch,
            report=self._report,
        )

    def live(self) -> NoReturn:
        """Wait for an order, execute it, and end."""
        signal.signal(signal.SIGTERM, self._stop)
        _seed_random_numbers()
        order = self._await_order()
        # From here on, SIGTERM unwinds the user's code instead of ending the process at once.
        self._busy = True
        try:
            self._enter_temporary_folder()
            threading.Thread(target=self._listen, name="triggerer-channel", daemon=True).start()
            self._handle(order)
            self._busy = False
        except ProcessStopped:
            os._exit(128 + signal.SIGTERM)
        self._link.finished(importable_ahead(self._imported.names()))
        self._spark.give_back_driver()
        os._exit(0)

    def query(self, run_pk: int, what: str, **fields: Any) -> Any:
        """Send a run's query to the executor and wait for the reply. Any thread may call this method.

        Raises:
            RunFailed: The executor could not answer. The message has the reason.
        """
        number = next(self._numbers)
        answer = self._waiting[number] = queue.SimpleQueue()
        try:
            self._reporter.send(
                message("query", run=run_pk, number=number, what=what, fields=fields)
            )
            reply = answer.get()
        finally:
            del self._waiting[number]
        if reply["error"] is not None:
            raise RunFailed(reply["error"])
        return reply["value"]

    def _await_order(self) -> dict[str, Any]:
        """Wait for an order, and return it. Meanwhile do what the fork server and the executor request."""
        while True:
            # Accept no order until the previous run's processes are gone. Until then, listen only to the fork server.
            sources: list[ForkServerLink | ChildChannel]
            sources = [self._link, self._channel] if self._link.may_begin else [self._link]
            ready = [] if self._channel.has_more else select.select(sources, (), ())[0]
            if self._link in ready:
                heard = self._link.receive()
                if heard == "go":
                    self._file_states.recall(self._link.file_states)
                    for folder in self._link.left_folders:
                        shutil.rmtree(folder, ignore_errors=True)
                elif heard == "driver":
                    self._spark.attach_ahead()
                elif heard == "leave":
                    os._exit(0)
                continue
            try:
                order: dict[str, Any] = self._channel.receive()
            except EOFError:
                # The executor has closed the channel, because it no longer needs this process.
                os._exit(0)
            if order["type"] != "release":
                return order
            self._release()

    def _handle(self, order: dict[str, Any]) -> None:
        if order["type"] == "run":
            execute_run(RunOrder.from_json(order["run"]), self._context)
        else:
            wanted = CallbackOrder.from_json(order["callback"])
            call_back(wanted, self._context)
            self._reporter.send(message("called", run=wanted.run.run_pk))

    def _enter_temporary_folder(self) -> None:
        """Make a temporary folder for `tempfile` and for the run's programs. The folder is removed after the run."""
        try:
            folder = tempfile.mkdtemp(prefix="triggerer-run-")
        except OSError as error:
            logger.warning("the run has no folder of its own for temporary files: %s", error)
            return
        self._link.owns(folder)
        tempfile.tempdir = os.environ["TMPDIR"] = folder

    def _release(self) -> None:
        try:
            self._spark.release_executors()
        except Exception:
            # Ignore the error: idle executors end later on their own, and a run notices a broken session itself.
            logger.exception("Spark's executors could not be given back")

    def _on_wait(self, run_pk: int, wait: Wait) -> None:
        self._reporter.send(message("waiting", run=run_pk, wait=wait))

    def _listen(self) -> None:
        while True:
            try:
                frame = self._channel.receive()
            except (EOFError, OSError):
                # The executor is gone, or has given this run up. No results are accepted.
                if self._busy:
                    kill_own_group()
                return
            waiting = self._waiting.get(frame["number"])
            # None: the task that sent the query was interrupted, and no longer waits for the reply.
            if waiting is not None:
                waiting.put(frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._busy:
            os._exit(128 + number)
        self._is_stopping = True
        # The task's `finally` blocks may use Spark. They need another connection to the JVM, because the present
        # connection still waits for the answer to the interrupted call.
        forget_connection()
        self._spark.interrupt_soon()
        raise ProcessStopped

    def _report(self, run_pk: int, report: RunReport) -> None:
        if self._is_stopping and report.end is not None:
            # The task's code caught `ProcessStopped`, or raised another exception instead. Raise `ProcessStopped`
            # again, so that the run's end is not reported.
            raise ProcessStopped
        if report.end is not None:
            # Complete the log before the end is reported. After the report, users may read the log,
            # and the executor may kill this process.
            flush_output()
        self._reporter.report(run_pk, report)


def _seed_random_numbers() -> None:
    # Seed NumPy's generator, as Python seeds its own generator after a fork. Otherwise all runs would draw the same
    # numbers.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
