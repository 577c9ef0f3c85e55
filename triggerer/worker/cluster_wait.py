"""Notices that a run waits for its Spark cluster, and reports the wait in the run's log and to the executor."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Final, Self

from triggerer.domain.attempts import Wait
from triggerer.worker.failures import storable
from triggerer.worker.logs.writing import append_line

PATIENCE: Final = timedelta(seconds=5)
"""A free cluster takes about this long to start an executor. Shorter waits are not reported."""
_LOOK_EVERY_S: Final = 1.0
_LAST_LOOK_S: Final = 1.0


class ClusterWatch:
    """Watches in a thread, from `start` to the end of the block, whether a run's Spark session waits for its cluster.

    Args:
        why_waiting: Returns the reason for waiting, or None if the session does not wait. If `why_waiting` raises, for
            instance because the session's JVM has died, the watch ends until the next `start`.
        tell: Called when a wait has lasted for `patience`, then at each change of the wait's reason, and at the end of
            the wait. Not called after the block.
        log_path: The path of the run's log. The log gets these reports, too.
    """

    def __init__(
        self,
        why_waiting: Callable[[], str | None],
        tell: Callable[[Wait], None],
        log_path: str,
        *,
        patience: timedelta = PATIENCE,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        self._why_waiting = why_waiting
        self._tell = tell
        self._log_path = log_path
        self._patience_s = patience.total_seconds()
        self._look_every_s = look_every_s
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        # Held while a report is written, and while `__exit__` sets `_ended`. So no report follows
        # the `with` block.
        self._saying = threading.Lock()
        self._said: Wait | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._saying:
            self._ended.set()
        if self._thread is not None:
            # Limit the time, because the thread may be waiting for the answer of a JVM that hangs.
            self._thread.join(_LAST_LOOK_S)

    def start(self) -> None:
        """Start the watch, if it has not begun or has ended."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._watch, name="cluster-watch", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        began: float | None = None
        while not self._ended.is_set():
            try:
                reason = self._why_waiting()
            except Exception:  # noqa: BLE001 - the connection is broken, so the run gets an error, too
                with self._saying:
                    if not self._ended.is_set():
                        # Otherwise the run would be shown as waiting until the next session.
                        self._say(None, 0.0)
                return
            if reason is None:
                began = None
            elif began is None:
                began = time.monotonic()
            with self._saying:
                if not self._ended.is_set():
                    self._say(reason, 0.0 if began is None else time.monotonic() - began)
            self._ended.wait(self._look_every_s)

    def _say(self, reason: str | None, seconds: float) -> None:
        now = datetime.now(UTC)
        if reason is None and self._said is not None:
            waited = (now - self._said.since).total_seconds()
            append_line(self._log_path, f"the run waited for {waited:.0f} s, and continues")
            self._tell(Wait(None, self._said.since))
            self._said = None
        elif reason is not None and seconds >= self._patience_s:
            since = now - timedelta(seconds=seconds) if self._said is None else self._said.since
            wait = Wait(storable(reason), since)
            if wait != self._said:
                append_line(self._log_path, f"the run waits for {reason}", level=logging.WARNING)
                self._tell(wait)
                self._said = wait
