"""An executor's lease on its runs: kept while the store takes its heartbeats, and over in time where it does not.

Others queue the runs of an executor again once its registration has expired, by the database's clock. They cannot know
that it lives and only does not reach the database; it cannot know whether it is the one that is cut off, or everybody
is. So it goes by its own clock: what it executes has ended before anybody else may begin it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog

from triggerer.errors import StoreError, StoreUnavailable, TransientStoreError
from triggerer.store import leases
from triggerer.store.engine.database import Database

_log = structlog.get_logger(__name__)

_KIND: Final = "executor"
_GOODBYE: Final = timedelta(seconds=2)
# Parts of the lease.
_INTERVAL: Final = 1 / 3
_AGAIN: Final = 1 / 10
"""From one that failed to the next."""
_PATIENCE: Final = 1 / 6
"""For what a heartbeat asks, and again for its commit: one that hangs, on a connection that is dead without our
knowing, leaves the time for another one."""
_MARGIN: Final = 1 / 10
"""For what is ended here to be gone."""


class LeaseHolder(Protocol):
    """Who executes under the lease; told on the event loop."""

    def note_lease_lost(self) -> None:
        """It is over, and was not extended: nothing that others may begin now is to run here any more."""

    def note_lease_kept(self) -> None:
        """A heartbeat was taken after that."""


class Registration:
    """Shows an executor as alive, so that nobody else takes its runs.

    Args:
        expiry: How long a heartbeat holds.
        holder: None: nobody else can take its runs (SQLite), whether it is shown or not.
    """

    def __init__(
        self,
        database: Database,
        instance_id: str,
        *,
        expiry: timedelta,
        holder: LeaseHolder | None,
    ) -> None:
        self._database = database
        self._instance_id = instance_id
        self._expiry = expiry
        self._holder = holder
        self._is_lost = False
        self._end: asyncio.TimerHandle | None = None

    async def renew(self) -> None:
        """Stay alive for as long again, counted from now.

        Raises:
            TransientStoreError: The lease ends when it would have, unless a repeat succeeds.
        """
        began = anyio.current_time()
        patience = self._expiry * _PATIENCE
        try:
            with anyio.fail_after(patience.total_seconds()):
                async with self._database.transaction(commit_timeout=patience) as session:
                    # Registering anew is a heartbeat, and brings back a row that others took for a dead one's: what
                    # they did with our runs meanwhile is fenced by the runs' attempts.
                    await leases.register_instance(
                        session, self._instance_id, kind=_KIND, expiry=self._expiry
                    )
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._database.name} did not take a heartbeat within {patience.total_seconds():g} s"
            ) from error
        self._hold_until(began + self._expiry.total_seconds() * (1 - _MARGIN))

    async def keep(self) -> None:
        """Renew until cancelled, then sign off: others need not wait for the expiry."""
        lease_s = self._expiry.total_seconds()
        due = anyio.current_time() + lease_s * _INTERVAL
        try:
            while True:
                await anyio.sleep_until(due)
                began = anyio.current_time()
                try:
                    await self.renew()
                except TransientStoreError as error:
                    _log.warning("the executor's heartbeat failed", error=str(error))
                    due = began + lease_s * _AGAIN
                else:
                    due = began + lease_s * _INTERVAL
        finally:
            if self._end is not None:
                self._end.cancel()
            await self._sign_off()

    def _hold_until(self, when: float) -> None:
        if self._holder is None:
            return
        if self._end is not None:
            self._end.cancel()
        # A timer, not the task that renews: that may be waiting for the store.
        self._end = asyncio.get_running_loop().call_at(when, self._lose, self._holder)
        if self._is_lost:
            self._is_lost = False
            _log.info("the executor's lease is held again")
            self._holder.note_lease_kept()

    def _lose(self, holder: LeaseHolder) -> None:
        _log.warning("the executor's lease is over: what it executes ends, and is queued again")
        self._is_lost = True
        holder.note_lease_lost()

    async def _sign_off(self) -> None:
        with anyio.move_on_after(_GOODBYE.total_seconds(), shield=True):
            try:
                async with self._database.transaction(commit_timeout=_GOODBYE) as session:
                    await leases.deregister_instance(session, self._instance_id)
            except StoreError as error:
                # It expires by itself.
                _log.warning("the executor could not sign off", error=str(error))
