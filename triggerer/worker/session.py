"""The Spark session that a worker keeps between runs."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from triggerer.worker.logs import Output

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

logger = logging.getLogger(__name__)

_OPENING_S: Final = 30.0
"""Longer than opening a session takes on a cluster with room for it."""


class SparkHolder:
    """Opens a session when one is needed, and another one when the last has died.

    Args:
        on_change: Called with True when a session opens, and with False when it is gone.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        home: Path,
        output: Output,
        on_change: Callable[[bool], None],
    ) -> None:
        self._values = settings
        self._home = home
        self._output = output
        self._on_change = on_change
        self._session: Any = None
        self._opening_since: float | None = None

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

    def why_waiting(self) -> str | None:
        """Return the reason why the session, open or opening, waits for its cluster; None: no wait. From any thread."""
        from triggerer.worker.spark import why_waiting
        from triggerer.worker.spark.settings import master_of

        since = self._opening_since
        if since is not None:
            is_slow = time.monotonic() - since > _OPENING_S
            return f"a Spark session on {master_of(self.settings)}" if is_slow else None
        session = self._session
        return None if session is None else why_waiting(session)

    def await_cluster(self, tell: Callable[[str | None], None]) -> None:
        """Return once the master or the Spark Connect server accepts connections. See `spark.patience`.

        Raises:
            SubmitFailed: It did not answer in time.
        """
        from triggerer.worker.spark import await_cluster

        await_cluster(self.settings, tell)

    def release_executors(self) -> None:
        """Give the session's executors back to the cluster until the session has work again."""
        from triggerer.worker.spark import release_executors

        if self._session is not None:
            release_executors(self._session)

    @functools.cached_property
    def settings(self) -> SparkSettings:
        from triggerer.worker.spark import SparkSettings

        return SparkSettings.from_json(self._values)

    def get(self, modules: Sequence[ModuleType] = ()) -> Any:
        """Return a live session.

        Args:
            modules: Modules of the DAGs folder. Spark's Python workers cannot import them, so functions from these
                modules are sent with their code.
        Raises:
            SubmitFailed: No session could be opened. The message has the reason.
        """
        from triggerer.worker.spark import close_session, how_it_ended, is_alive

        if self._session is not None and not is_alive(self._session):
            reason = how_it_ended(self._session) or "for no known reason"
            logger.warning("the Spark session has ended: %s; opening another one", reason)
            close_session(self._session)
            self.drop()
        if self._session is None:
            self._open()
        from pyspark.cloudpickle import register_pickle_by_value

        for module in modules:
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        return self._session

    def warm(self) -> None:
        """Open a session and run a query on it, so that the first run need not wait for that."""
        from triggerer.worker.spark import warm_up

        warm_up(self.get())

    def interrupt(self) -> None:
        """Stop the session's work, because nobody waits for it any longer."""
        if self._session is None:
            return
        if hasattr(self._session, "_jsparkSession"):
            self._session.sparkContext.cancelAllJobs()
        else:
            # A client of Spark Connect has no context.
            self._session.interruptAll()

    def drop(self) -> None:
        """Forget the session. Its remains end with this process."""
        if self._session is not None:
            self._session = None
            self._on_change(False)

    def _open(self) -> None:
        from triggerer.worker.spark import open_session

        begun = self._opening_since = time.monotonic()
        try:
            with self._output.of_the_worker():
                self._session = open_session(self.settings, home=self._home, app_name="triggerer")
        finally:
            self._opening_since = None
        logger.info("Spark session opened in %.2f s", time.monotonic() - begun)
        self._on_change(True)
