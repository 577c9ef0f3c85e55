"""Writes the live state of this instance's streams to the store, where the API reads it.

An instance reports every 5 s while somebody reads the streams through the API, and every 30 s otherwise. Each report is
a transaction. A report that is not stored within 2 s is dropped, because the next report has newer numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskStatus

from triggerer.domain.live_state import StreamLive
from triggerer.errors import StoreError
from triggerer.hosting.stream_history import StreamHistories
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.streams.reports import write_report

_log = structlog.get_logger(__name__)

OFTEN: Final = timedelta(seconds=5)
SELDOM: Final = timedelta(seconds=30)
_PATIENCE: Final = timedelta(seconds=2)
"""A store that needs longer than this is overloaded, and a report must not add to its load."""


class Reporter:
    """Writes the reports of one instance.

    Args:
        read: Returns the live state of the instance's streams. Called in a thread.
    """

    def __init__(
        self, database: Database, instance_id: str, read: Callable[[], Sequence[StreamLive]]
    ) -> None:
        self._database = database
        self._instance_id = instance_id
        self._read = read
        self._histories = StreamHistories()
        self._is_looked_at = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report until cancelled."""
        with self._database.wakeups.subscribe(Signal.REPORTS_WANTED) as wanted:
            task_status.started()
            while True:
                await self.report()
                await wanted.wait(OFTEN if self._is_looked_at else SELDOM)

    async def report(self) -> None:
        """Write one report, or drop it if it is not stored in time."""
        streams = self._histories.add(await to_thread.run_sync(self._read))
        try:
            with anyio.move_on_after(_PATIENCE.total_seconds()) as scope:
                async with self._database.transaction(commit_timeout=_PATIENCE) as session:
                    self._is_looked_at = await write_report(session, self._instance_id, streams)
        except StoreError as error:
            # Other log lines say that the database is away.
            _log.debug("a report was left out", error=str(error))
        if scope.cancelled_caught:
            _log.debug("a report was left out", after_s=_PATIENCE.total_seconds())
