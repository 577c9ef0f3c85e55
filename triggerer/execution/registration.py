"""An executor's lease on its runs: held while the store takes its heartbeats, and given up in time if it does not.

Once an executor's registration has expired, by the database's clock, others queue its runs again. They cannot tell an
executor that is dead from one that cannot reach the database, and it cannot tell whether they still reach the database.
So it goes by its own clock: what it executes has ended before anybody else may begin it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, Protocol

import anyio
import structlog

from triggerer.backoff import warn_seldom
from triggerer.errors import StoreError, StoreUnavailable, TransientStoreError
from triggerer.store import leases
from triggerer.store.engine.database import Database

_log = structlog.get_logger(__name__)

_KIND: Final = "executor"
_DEREGISTER_TIMEOUT: Final = timedelta(seconds=2)
# Fractions of the lease.
_INTERVAL: Final = 1 / 3
_RETRY_INTERVAL: Final = 1 / 10
"""From a heartbeat that failed to the next."""
_TIMEOUT: Final = 1 / 6
"""For the statements of a heartbeat, and again for its commit. If it hangs on a dead connection, there is time for
another."""
_MARGIN: Final = 1 / 10
"""For what is executed here to end."""


class LeaseHolder(Protocol):
    """Executes under the lease. Called on the event loop."""

    def note_lease_lost(self) -> None:
        """The lease is over, and was not extended: nothing that others may begin now may go on here."""

    def note_lease_kept(self) -> None:
        """A heartbeat has succeeded again."""


class Registration:
    """Shows an executor as alive, so that nobody else takes its runs.

    Args:
        expiry: How long a heartbeat holds.
        holder: None: nobody else can take its runs (SQLite).
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
        """Extend the lease: it holds for `expiry` from now.

        Raises:
            TransientStoreError: The lease ends when it would have, unless a repeat succeeds.
        """
        began = anyio.current_time()
        timeout = self._expiry * _TIMEOUT
        try:
            with anyio.fail_after(timeout.total_seconds()):
                async with self._database.transaction(commit_timeout=timeout) as session:
                    # To register again is the heartbeat. It also restores a row that others removed because they
                    # took us for dead; what they did with our runs meanwhile is fenced by the runs' attempts.
                    await leases.register_instance(
                        session, self._instance_id, kind=_KIND, expiry=self._expiry
                    )
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._database.name} did not take a heartbeat within {timeout.total_seconds():g} s"
            ) from error
        self._hold_until(began + self._expiry.total_seconds() * (1 - _MARGIN))

    async def keep(self) -> None:
        """Renew until cancelled, then deregister: others need not wait for the expiry."""
        lease_s = self._expiry.total_seconds()
        due = anyio.current_time() + lease_s * _INTERVAL
        failures = 0
        try:
            while True:
                await anyio.sleep_until(due)
                began = anyio.current_time()
                try:
                    await self.renew()
                except TransientStoreError as error:
                    failures += 1
                    warn_seldom(_log, failures, "the executor's heartbeat failed", error=str(error))
                    due = began + lease_s * _RETRY_INTERVAL
                else:
                    failures = 0
                    due = began + lease_s * _INTERVAL
        finally:
            if self._end is not None:
                self._end.cancel()
            await self._deregister()

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

    async def _deregister(self) -> None:
        with anyio.move_on_after(_DEREGISTER_TIMEOUT.total_seconds(), shield=True):
            try:
                async with self._database.transaction(
                    commit_timeout=_DEREGISTER_TIMEOUT
                ) as session:
                    await leases.deregister_instance(session, self._instance_id)
            except StoreError as error:
                # It expires by itself.
                _log.warning("the executor could not sign off", error=str(error))
