"""Opens a driver for one run: in the mode `submit`, or if the DAG has settings or packages that need a new JVM.

Such a run is a separate application on the master, in client mode. The application ends with the run. The worker's warm
driver stays for later runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from triggerer.domain.authoring.spark_values import is_static
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.jvm.connections import enter_session
from triggerer.worker.spark.sessions import classic
from triggerer.worker.spark.sessions.connect import is_connect
from triggerer.worker.spark.sessions.session import how_it_ended, is_alive
from triggerer.worker.spark.settings import CONNECT, SUBMIT, mode_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from triggerer.config import SparkSettings

logger = logging.getLogger("triggerer.run")

_PACKAGES: Final = "spark.jars.packages"
_CLOSING: Final = timedelta(seconds=5)
_INTERRUPT_S: Final = 2.0
"""The time that a JVM has to accept the request to cancel its jobs."""


class DagSettings(NamedTuple):
    """`spark_conf` and `spark_packages` of a DAG."""

    conf: Mapping[str, str]
    packages: Sequence[str]

    @property
    def static(self) -> dict[str, str]:
        """The settings that only a new JVM can have."""
        return {key: value for key, value in self.conf.items() if is_static(key)}

    def need_own_driver(self, settings: SparkSettings) -> bool:
        """Return whether each run of the DAG needs a driver of its own.

        Raises:
            SubmitFailed: The runs need a driver of their own, but use a Spark Connect server.
        """
        mode = mode_of(settings)
        static = self.static
        if mode == CONNECT and (static or self.packages):
            what = "spark_packages" if self.packages else f"{next(iter(static))} in spark_conf"
            raise SubmitFailed(
                f"a run on a Spark Connect server cannot have {what} of its own",
                hint="start the server with it, or use another [spark] mode",
            )
        return mode == SUBMIT or bool(static or self.packages)

    def apply(self, session: SparkSession) -> None:
        """Set the settings that need no new JVM, in the session of a run."""
        for key, value in self.conf.items():
            if is_connect(session) or not is_static(key):
                session.conf.set(key, value)


class OwnDriver:
    """Opens the driver when the run first needs it, and ends it with `close`."""

    def __init__(self, settings: SparkSettings, dag: DagSettings, *, home: Path, name: str) -> None:
        packages = [one for one in settings.conf.get(_PACKAGES, "").split(",") if one]
        conf = {**settings.conf, **dag.conf}
        if dag.packages:
            conf[_PACKAGES] = ",".join(dict.fromkeys([*packages, *dag.packages]))
        self._settings = replace(settings, conf=conf)
        self._home = home
        self._name = name
        self._opened = ExitStack()
        self.session: SparkSession | None = None

    def get(self, modules: Sequence[ModuleType] = ()) -> SparkSession:
        """Return the live session. See `SparkHolder.get`.

        Raises:
            SubmitFailed: No session could be opened.
        """
        if self.session is not None and not is_alive(self.session):
            logger.warning("the run's own Spark application has ended; another one is started")
            self.close()
        if self.session is None:
            begun = time.monotonic()
            self._opened.enter_context(_detached())
            installation = classic.find_installation(self._home)
            self.session = classic.open_classic(self._settings, installation, app_name=self._name)
            self._opened.callback(classic.close_classic, _CLOSING)
            logger.info("application of this run started in %.2f s", time.monotonic() - begun)
        from pyspark.cloudpickle import register_pickle_by_value

        for module in modules:
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        return self.session

    def interrupt(self) -> bool:
        """Stop the session's work, whose result is not needed any longer. The session can be used afterwards.

        Returns:
            False: Spark does not answer.
        """
        session = self.session
        if session is None:
            return True
        # This thread's connection to the JVM may still wait for the answer to an interrupted call.
        # So use another thread, which has its own connection.
        stopping = threading.Thread(target=_stop_work, args=(session,), daemon=True)
        stopping.start()
        stopping.join(_INTERRUPT_S)
        if stopping.is_alive():
            return False
        enter_session(session)
        return True

    def kill(self) -> None:
        """Kill the JVM of a run that must stop. The application on the cluster ends too."""
        if self.session is not None and (process := classic.jvm_process()) is not None:
            process.kill()
        self.close()

    def has_ended(self) -> bool:
        """Return whether the JVM is gone, or was never started."""
        process = None if self.session is None else classic.jvm_process()
        return process is None or process.poll() is not None

    def how_it_ended(self) -> str | None:
        """Return a sentence for the user about the driver's end.

        None: the driver is alive, was never opened, or ended for an unknown reason.
        """
        if self.session is None or is_alive(self.session):
            return None
        return how_it_ended(self.session)

    def close(self) -> None:
        """End the application and its JVM. A second call does nothing."""
        self.session = None
        self._opened.close()


def _stop_work(session: SparkSession) -> None:
    session.sparkContext.cancelAllJobs()
    for query in session.streams.active:
        query.stop()


@contextmanager
def _detached() -> Iterator[None]:
    """Hide this process's session from PySpark during the block, so that PySpark can open another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    known: tuple[tuple[Any, str], ...] = (
        (SparkContext, "_gateway"),
        (SparkContext, "_jvm"),
        (SparkContext, "_active_spark_context"),
        (SparkSession, "_instantiatedSession"),
        (SparkSession, "_activeSession"),
        (SQLContext, "_instantiatedContext"),
    )
    before = [getattr(owner, name, None) for owner, name in known]
    for owner, name in known:
        setattr(owner, name, None)
    try:
        yield
    finally:
        for (owner, name), value in zip(known, before, strict=True):
            setattr(owner, name, value)
