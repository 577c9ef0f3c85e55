"""The Spark session of a run's process: on the driver that the fork server lends, or on a Spark Connect server."""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.launches import CONNECT
from triggerer.errors import RunFailed, SubmitFailed
from triggerer.worker.fork_server.link import ForkServerLink
from triggerer.worker.launch_reports import SessionLaunches
from triggerer.worker.launchers.protocol import Absent, Ended, Handle, Unknown
from triggerer.worker.launchers.registry import launcher_named
from triggerer.worker.spark.jvm.connections import enter_session
from triggerer.worker.spark.jvm.leftovers import kill_jvm

if TYPE_CHECKING:
    from triggerer.config import SparkSettings
    from triggerer.worker.spark.sessions.shared import SharedDriver

logger = logging.getLogger(__name__)

_OPENING_S: Final = 30.0
"""A session that takes more seconds than this to open counts as waiting for its cluster. If the
cluster has free cores, a session opens sooner.
"""
_INTERRUPT_S: Final = 2.0
"""How long a JVM may take to accept the request to cancel its jobs."""
_DYING_S: Final = 2.0
"""How long to wait for the end of a JVM after a connection to it was lost."""


class SparkHolder:
    """Opens this process's own session, on the worker's driver or on a Spark Connect server."""

    def __init__(self, settings: Mapping[str, Any], link: ForkServerLink) -> None:
        self._values = settings
        self._link = link
        self._session: Any = None
        self._driver: SharedDriver | None = None
        self._opening_since: float | None = None
        self._launches: SessionLaunches | None = None
        self._is_broken = False
        self._interrupts: queue.SimpleQueue[Callable[[bool], None]] = queue.SimpleQueue()
        """For each interrupt, the function that receives whether Spark has stopped its work."""
        self._interrupter: threading.Thread | None = None

    def begin_run(self, launches: SessionLaunches) -> None:
        """Use `launches` to report the sessions that the run opens on a Spark Connect server."""
        self._launches = launches

    def end_run(self) -> None:
        """Release the session on a Spark Connect server, because its operations would otherwise continue."""
        if self._session is not None and self._is_connect:
            self._drop()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @functools.cached_property
    def needs_cluster(self) -> bool:
        """True if sessions get their executors from a cluster.

        Raises:
            ConfigurationError: The settings contradict one another.
        """
        from triggerer.worker.spark import needs_cluster

        return needs_cluster(self.settings)

    @functools.cached_property
    def _is_connect(self) -> bool:
        from triggerer.worker.spark.settings import CONNECT, mode_of

        return mode_of(self.settings) == CONNECT

    @functools.cached_property
    def settings(self) -> SparkSettings:
        from triggerer.config import SparkSettings

        return SparkSettings.from_json(self._values)

    def why_waiting(self) -> str | None:
        """Return the reason why the session waits for its cluster. Any thread may call this method.

        None: the session does not wait, or has been opening for at most `_OPENING_S`.
        """
        from triggerer.worker.spark import why_waiting
        from triggerer.worker.spark.settings import master_of

        since = self._opening_since
        if since is not None:
            is_slow = time.monotonic() - since > _OPENING_S
            return f"a Spark session on {master_of(self.settings)}" if is_slow else None
        session = self._session
        return None if session is None else why_waiting(session)

    def await_cluster(self, tell: Callable[[str | None], None]) -> None:
        """Wait until the master or the Spark Connect server accepts connections. See `spark.sessions.absent_cluster`.

        Raises:
            SubmitFailed: The master or the server did not answer in time.
        """
        from triggerer.worker.spark import await_cluster

        await_cluster(self.settings, tell)

    def release_executors(self) -> None:
        """Give the session's executors back to the cluster until the session has work again."""
        from triggerer.worker.spark import release_executors

        if self._session is not None:
            release_executors(self._session)

    def attach_ahead(self) -> None:
        """Attach to the driver that the fork server has sent, before a run needs it."""
        if self._session is not None or self._link.driver is None:
            return
        try:
            self._attach(self._link.driver)
        except SubmitFailed as error:
            self._link.unusable(str(error), self._link.driver.pid)
        else:
            self._link.attached()

    def get(self, modules: Sequence[ModuleType] = ()) -> Any:
        """Return a live session.

        Args:
            modules: Modules of the DAGs folder. Spark's Python workers cannot import them, so functions from these
                modules are sent with their code.
        Raises:
            SubmitFailed: No session could be opened. The message has the reason.
        """
        from triggerer.worker.spark import is_alive

        if self._session is not None and (self._is_broken or not is_alive(self._session)):
            reason = self._how_ended() or "for no known reason"
            logger.warning("the Spark session has ended: %s; opening another one", reason)
            self._drop()
        if self._session is None:
            self._open()
        self._start_interrupter()
        from pyspark.cloudpickle import register_pickle_by_value

        for module in modules:
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        return self._session

    def interrupt(self) -> bool:
        """Stop the session's work, whose result is not needed any longer. The session can be used afterwards.

        Returns:
            False: Spark does not answer, or answers with an error. The next call of `get` opens another session.
        """
        if self._session is None:
            return True
        self._start_interrupter()
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._interrupts.put(answers.put)
        try:
            is_interrupted = answers.get(timeout=_INTERRUPT_S)
        except queue.Empty:
            is_interrupted = False
        if not is_interrupted:
            logger.warning("Spark does not stop its work; its session is not used again")
            self._is_broken = True
            return False
        if not self._is_connect:
            enter_session(self._session)
        return True

    def interrupt_soon(self) -> None:
        """Let another thread stop the session's jobs, and return at once. A signal handler may call this."""
        self._interrupts.put(_nothing)

    def kill_driver(self, reason: str) -> None:
        """Kill the driver and its Python workers, because their work does not end. The next try gets another driver."""
        if self._driver is not None:
            self._link.unusable(reason, self._driver.pid)
            kill_jvm(self._driver.pid)
        self._is_broken = True

    def end_connect_session(self) -> None:
        """End the session on its Spark Connect server, and wait until the server executes none of its work.

        Another client asks the server, because the session's own client may be closed or broken. The next call of `get`
        opens another session.

        Raises:
            RunFailed: The server does not confirm the end, so the work may continue.
        """
        self._is_broken = True
        launches = self._launches
        tag = None if launches is None else launches.tag
        if launches is None or tag is None:
            raise RunFailed("the work of the failed try may continue: its session has no tag")
        sighting = launcher_named(CONNECT, self.settings).stop(Handle(tag))
        if not isinstance(sighting, Ended | Absent):
            why = sighting.reason if isinstance(sighting, Unknown) else "its session is still open"
            raise RunFailed(f"the work of the failed try may continue: {why}")
        launches.released()

    def has_driver_ended(self) -> bool:
        """Return whether the JVM of this process's session is gone."""
        if self._driver is None:
            return False
        return self._link.how_driver_ended(self._driver.pid, patience_s=0.0) is not None

    def how_driver_ended(self, error: BaseException) -> str | None:
        """Return a sentence that says how the driver ended. None: the driver has not ended, or there is no driver.

        Args:
            error: The error of a try. After a lost connection the method waits a moment, because the JVM may be ending.
        """
        if self._driver is None:
            return None
        patience_s = _DYING_S if _has_lost_connection(error) else 0.0
        how = self._link.how_driver_ended(self._driver.pid, patience_s=patience_s)
        self._is_broken |= how is not None
        return how

    def give_back_driver(self) -> None:
        """Leave the driver to later runs. If it is broken, tell the fork server."""
        if self._is_broken and self._driver is not None:
            self._link.unusable("a run could not use it any longer", self._driver.pid)

    def _open(self) -> None:
        begun = self._opening_since = time.monotonic()
        try:
            if self._is_connect:
                from triggerer.worker.spark.sessions.connect import open_connect

                tag = None if self._launches is None else self._launches.begin()
                self._session = open_connect(self.settings, tag=tag)
            else:
                self._attach(self._link.open_driver(is_fresh=self._is_broken))
        finally:
            self._opening_since = None
        logger.info("Spark session opened in %.2f s", time.monotonic() - begun)

    def _attach(self, driver: SharedDriver) -> None:
        from triggerer.worker.spark.sessions.shared import attach

        self._session = attach(driver)
        self._link.owns(self._session.sparkContext._temp_dir)  # noqa: SLF001
        self._driver = driver
        self._is_broken = False

    def _how_ended(self) -> str | None:
        from triggerer.worker.spark import how_it_ended

        how = None
        if self._driver is not None:
            how = self._link.how_driver_ended(self._driver.pid, patience_s=0.0)
        return how or how_it_ended(self._session)

    def _drop(self) -> None:
        from triggerer.worker.spark import close_session

        if close_session(self._session) and self._launches is not None:
            self._launches.released()
        self._session = None
        self._is_broken = True

    def _start_interrupter(self) -> None:
        # Start the thread in advance, because a signal handler cannot safely start a thread.
        if self._interrupter is None:
            self._interrupter = threading.Thread(
                target=self._interrupt_on_demand, name="spark-interrupter", daemon=True
            )
            self._interrupter.start()

    def _interrupt_on_demand(self) -> None:
        while True:
            answer = self._interrupts.get()
            try:
                self._interrupt()
            except Exception:
                logger.exception("the work on Spark could not be stopped")
                answer(False)
            else:
                answer(True)

    def _interrupt(self) -> None:
        session = self._session
        if session is None:
            return
        if self._is_connect:
            session.interruptAll()
            return
        # The interrupted thread's connection waits for an answer. This thread has another connection.
        session.sparkContext.cancelAllJobs()
        for query in session.streams.active:
            query.stop()


def _has_lost_connection(error: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    found, unseen = set[int](), [error]
    while unseen:
        one = unseen.pop()
        if id(one) in found:
            continue
        found.add(id(one))
        if isinstance(one, ConnectionError | EOFError):
            return True
        if isinstance(one, Py4JError) and not isinstance(one, Py4JJavaError):
            return True
        if isinstance(one, BaseExceptionGroup):
            unseen.extend(one.exceptions)
        unseen.extend(other for other in (one.__cause__, one.__context__) if other is not None)
    return False


def _nothing(_: bool) -> None:
    pass
