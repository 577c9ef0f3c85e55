"""Ends runs some time after they were queued, and emits events as users do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio

from triggerer.errors import StoreError
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events.bulk_insert import EventRow, insert_events

if TYPE_CHECKING:
    from triggerer.testing.simulation.database.model import Store
    from triggerer.testing.simulation.database.transactions import Database


class Workload:
    """Ends runs and emits events, during the life of one process.

    Args:
        longest_run_s: The length of the longest run, in seconds.
        next_number: Returns unique numbers, for the keys of events.
        draw_events: Draws the events of one call of `emit`, as asset ids and partition keys. If None, each call emits
            one event without a key.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        next_number: Callable[[], int],
        *,
        longest_run_s: float = 5.0,
        draw_events: Callable[[], list[tuple[int, str | None]]] | None = None,
    ) -> None:
        self._database = database
        self._store = store
        self._next_number = next_number
        self._longest_run_s = longest_run_s
        self._draw_events = draw_events or self._draw_one

    async def execute(self) -> None:
        """End each run some time after it was queued."""
        following: set[int] = set()
        async with anyio.create_task_group() as tasks:
            with self._database.wakeups.subscribe(Signal.RUNS_QUEUED) as subscription:
                while True:
                    for pk, run in self._store.runs.items():
                        if not run.is_ended and pk not in following:
                            following.add(pk)
                            tasks.start_soon(self._end_run, pk, run.dag_id)
                    # A commit of unknown outcome may succeed after its announcement. Then this loop finds the run when
                    # the wait times out.
                    await subscription.wait(timedelta(seconds=10))

    async def _end_run(self, pk: int, dag_id: str) -> None:
        faults = self._store.faults
        await asyncio.sleep(faults.random.uniform(0.0, self._longest_run_s))
        await self._retry_until_committed(
            partial(self._end, pk=pk, dag_id=dag_id), Signal.RUNS_ENDED, dag_id
        )

    async def _end(self, session: Any, *, pk: int, dag_id: str) -> None:
        """End a run and emit its outlet's event, in one transaction."""
        store = self._store
        session.end_run(pk)
        if (outlet := store.dags[dag_id].outlet) is not None:
            # The event's key contains the run's number. So when a commit of unknown outcome is repeated, the store
            # recognizes the event.
            name, key = f"made by run {pk}", store.runs[pk].partition_key
            row = EventRow(store.asset_ids[outlet], "{}", store.now(), 0, name, 0, key)
            inserted = await session.perform(insert_events([row]))
            announce(session, Signal.EVENTS_QUEUED, *inserted.dag_ids)

    async def emit(self) -> None:
        """Emit events as a user does. The events get their ids up to three seconds before the commit."""
        store = self._store
        rows = [
            EventRow(asset, "{}", store.now(), 0, f"emitted {self._next_number()}", 0, key)
            for asset, key in self._draw_events()
        ]
        try:
            async with self._database.transaction() as session:
                inserted = await session.perform(insert_events(rows))
                announce(cast("Any", session), Signal.EVENTS_QUEUED, *inserted.dag_ids)
                await asyncio.sleep(store.faults.random.uniform(0.0, 3.0))
        except StoreError:
            # The user sees the error and gives up. If the outcome is unknown, the commit may have succeeded.
            return

    def _draw_one(self) -> list[tuple[int, str | None]]:
        assets = sorted(self._store.asset_ids.values())
        return [(self._store.faults.random.choice(assets), None)]

    async def _retry_until_committed(
        self, act: Callable[[Any], Awaitable[None]], signal: Signal, subject: str
    ) -> None:
        while True:
            try:
                async with self._database.transaction() as session:
                    await act(session)
                    announce(cast("Any", session), signal, subject)
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                return
