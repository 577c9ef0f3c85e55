"""A worker process: `python -m triggerer.worker.main`, started by the executor.

The main thread executes runs one after the other, because signals, and therefore timeouts, need it. A second thread
reads the channel, passes on replies, and ends everything when the executor is gone.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from triggerer.domain.attempts import CallbackOrder, RunOrder, Wait
from triggerer.errors import RunFailed
from triggerer.processes.ipc import ChildChannel, connect_to_parent
from triggerer.processes.lifelines import kill_own_group
from triggerer.processes.priority import give_way
from triggerer.worker.failures import WorkerStopped, storable
from triggerer.worker.logs import Output, set_up_logging
from triggerer.worker.protocol import message
from triggerer.worker.reporter import Reporter
from triggerer.worker.session import SparkHolder

logger = logging.getLogger(__name__)


class Worker:
    """One worker process."""

    def __init__(self, channel: ChildChannel, setup: dict[str, Any]) -> None:
        from triggerer.worker.attempt import Sightings, WorkerContext

        self._channel = channel
        self._reporter = Reporter(channel)
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._busy = False
        self._folder = _working_folder()
        output = Output()
        self._spark = SparkHolder(
            setup["spark"],
            Path(setup["home"]),
            output,
            lambda is_open: self._reporter.send(message("spark", open=is_open)),
        )
        self._context = WorkerContext(
            dags_folder=Path(setup["dags_folder"]),
            home=Path(setup["home"]),
            file_patience_s=setup["file_patience_s"],
            holds_broken=setup["holds_broken"],
            sightings=Sightings(),
            query=self.query,
            spark=self._spark,
            output=output,
            on_start=self._reporter.started,
            on_wait=self._on_wait,
            on_progress=self._reporter.progress,
            on_launch=self._reporter.launch,
            report=self._reporter.report,
        )

    def serve(self) -> NoReturn:
        """Execute orders until the executor ends this process, or is gone."""
        signal.signal(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, name="triggerer-channel", daemon=True).start()
        self._reporter.send(message("ready"))
        while True:
            order = self._orders.get()
            # From here on, SIGTERM unwinds the user's code instead of ending the process at once.
            self._busy = True
            try:
                self._handle(order)
            except WorkerStopped:
                self._leave()
            self._busy = False

    def query(self, run_pk: int, what: str, **fields: Any) -> Any:
        """Send a run's query to the executor and wait for the reply. Any thread may call it.

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

    def _handle(self, order: dict[str, Any]) -> None:
        from triggerer.worker.attempt import execute_run
        from triggerer.worker.callbacks import call_back

        if order["type"] == "run":
            self._reset()
            execute_run(RunOrder.from_json(order["run"]), self._context)
        elif order["type"] == "callback":
            self._reset()
            wanted = CallbackOrder.from_json(order["callback"])
            call_back(wanted, self._context)
            self._reporter.send(message("called", run=wanted.run.run_pk))
        elif order["type"] == "release":
            self._release()
        else:
            self._warm()

    def _release(self) -> None:
        try:
            self._spark.release_executors()
        except Exception:
            # Idle executors end later on their own. If the session is broken, the next run will notice.
            logger.exception("Spark's executors could not be given back")

    def _warm(self) -> None:
        error = None
        try:
            self._spark.warm()
        except Exception as reason:
            # The executor decides what to do. A run that needs Spark gets this reason as its own error.
            logger.exception("Spark could not be started ahead")
            error = storable(str(reason))
        self._reporter.send(message("warmed", error=error))

    def _reset(self) -> None:
        # The last run's code may have changed the signal handlers, the working folder or the logging.
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        try:
            os.chdir(self._folder)
        except OSError:
            # The folder is gone, or this user has no access, for instance if root started the service by `runuser`.
            os.chdir("/")
        set_up_logging()

    def _on_wait(self, run_pk: int, wait: Wait) -> None:
        self._reporter.send(message("waiting", run=run_pk, wait=wait))

    def _listen(self) -> None:
        while True:
            try:
                frame = self._channel.receive()
            except (EOFError, OSError):
                # The executor is gone, and nobody accepts results. End now, with the JVM and all other descendants. The
                # executor made this process a group leader.
                kill_own_group()
                return
            if frame["type"] == "reply":
                waiting = self._waiting.get(frame["number"])
                # None: the task was interrupted while it waited.
                if waiting is not None:
                    waiting.put(frame)
            else:
                self._orders.put(frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._busy:
            os._exit(128 + number)
        raise WorkerStopped

    def _leave(self) -> NoReturn:
        try:
            self._spark.interrupt()
        except Exception:
            # The rest of Spark's work dies with the process group.
            logger.exception("the work on Spark could not be stopped")
        os._exit(128 + signal.SIGTERM)


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/")


_NICENESS: Final = 5


def main() -> NoReturn:
    """Run a worker over the inherited channel."""
    channel = connect_to_parent()
    setup = channel.receive()
    # If processors are scarce, starting further runs matters more than the work of this one.
    give_way(_NICENESS)
    set_up_logging()
    Worker(channel, setup).serve()


if __name__ == "__main__":
    main()
