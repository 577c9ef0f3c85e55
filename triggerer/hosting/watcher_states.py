"""Writes the states of watchers to the store, where users see them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import anyio
import structlog

from triggerer.backoff import Backoff, warn_seldom
from triggerer.errors import StoreError
from triggerer.hosting.attempts import Attempts
from triggerer.hosting.queries import HostingQueries
from triggerer.hosting.roster import Roster, states_of
from triggerer.store.database.transactions import Database
from triggerer.store.watchers.hosting import WatcherState
from triggerer.streams import Member, MemberState
from triggerer.synchronization import AutoResetEvent

_log = structlog.get_logger(__name__)


class StateWriter:
    """Writes the states of this instance's triggers to the store.

    A trigger that is restarted after a failure still counts as failing for a while (`Attempts`), at most
    `healthy_after`.
    """

    def __init__(
        self,
        database: Database,
        roster: Roster,
        *,
        queries: HostingQueries,
        backoff: Backoff,
        healthy_after: timedelta,
    ) -> None:
        self._database = database
        self._roster = roster
        self._queries = queries
        self._backoff = backoff
        self._dirty: dict[Member, None] = {}
        self._has_dirty = AutoResetEvent()
        self._attempts = Attempts(healthy_after.total_seconds())

    def mark_changed(self, member: Member) -> None:
        """Write a trigger's state soon.

        Call this for a new trigger, and when the state or the watchers of a trigger have changed.
        """
        self._attempts.record(member, anyio.current_time())
        self._dirty[member] = None
        self._has_dirty.set()

    async def run(self) -> None:
        """Write all changed states in one transaction, again and again until cancelled."""
        while True:
            await self._wait()
            dirty, self._dirty = self._dirty, {}
            states = self._collect(dirty)
            if not states:
                continue
            try:
                async with self._database.transaction() as session:
                    await self._queries.write_states(session, states)
                self._backoff.reset()
            except StoreError as error:
                delay = self._backoff.next_delay()
                warn_seldom(
                    _log,
                    self._backoff.failures,
                    "cannot show the watchers' states",
                    error=str(error),
                    retry_after_s=round(delay, 3),
                )
                self._dirty = {**dirty, **self._dirty}
                await anyio.sleep(delay)
                self._has_dirty.set()

    async def _wait(self) -> None:
        """Wait until a state has changed, or a failed trigger counts as working again."""
        at = self._attempts.next_at()
        with anyio.move_on_after(None if at is None else max(at - anyio.current_time(), 0.0)):
            await self._has_dirty.wait()
        self._dirty |= dict.fromkeys(self._attempts.take_working(anyio.current_time()))

    def _collect(self, dirty: Iterable[Member]) -> list[WatcherState]:
        states: list[WatcherState] = []
        for member in dirty:
            hosted = self._roster.of(member)
            if hosted is not None and member.state is not MemberState.ENDED:
                states.extend(states_of(hosted, self._attempts.error_before(member)))
        return states
