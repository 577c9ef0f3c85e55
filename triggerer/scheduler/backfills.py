"""Continues backfills: when runs of a backfill have ended, starts its next runs."""

from __future__ import annotations

import time
from datetime import timedelta

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.errors import StoreError, TransientStoreError
from triggerer.store.backfills.execution import advance, dags_with_pending
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import ALL, Announced, Signal

_log = structlog.get_logger(__name__)


class BackfillRunner:
    """Starts further runs of backfills. Several runners may work at once: `advance` locks the backfill's row.

    Args:
        sweep_every: How often to read the backfills from the store even if nothing was announced.
    """

    def __init__(
        self, database: Database, *, sweep_every: timedelta = timedelta(seconds=10)
    ) -> None:
        self._database = database
        self._sweep_every = sweep_every
        self._pending: dict[int, str] = {}
        """Backfill id to DAG id. At the last sweep, these backfills still had intervals or keys to start."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. A cancelled transaction is rolled back, or committed as a whole."""
        backoff = Backoff(first=0.2, longest=10.0)
        sweep_due = 0.0
        signals: Announced = {}
        with self._database.wakeups.subscribe(
            Signal.BACKFILLS_CHANGED, Signal.RUNS_ENDED
        ) as subscription:
            task_status.started()
            while True:
                try:
                    if Signal.BACKFILLS_CHANGED in signals or time.monotonic() >= sweep_due:
                        await self.run_once()
                        sweep_due = time.monotonic() + self._sweep_every.total_seconds()
                    else:
                        ended = signals.get(Signal.RUNS_ENDED, set())
                        await self._advance(
                            [
                                one
                                for one, dag_id in self._pending.items()
                                if dag_id in ended or ALL in ended
                            ]
                        )
                    backoff.reset()
                except TransientStoreError as error:
                    delay = backoff.next_delay()
                    warn_seldom(
                        _log, backoff.failures, "backfills wait for the store", error=str(error)
                    )
                    sweep_due = 0.0
                    await anyio.sleep(delay)
                    continue
                signals = await subscription.wait(self._sweep_every)

    async def run_once(self) -> None:
        """For each backfill with pending intervals or keys, start runs until `max_active` of its runs are active."""
        async with self._database.reading() as session:
            self._pending = await dags_with_pending(session)
        await self._advance(list(self._pending))

    async def _advance(self, backfill_ids: list[int]) -> None:
        for backfill_id in backfill_ids:
            try:
                async with self._database.transaction() as session:
                    await advance(session, backfill_id)
            except TransientStoreError:
                raise
            except StoreError as error:
                # The store refused this backfill. The other backfills must not wait for it.
                _log.warning("a backfill cannot go on", backfill=backfill_id, error=str(error))
