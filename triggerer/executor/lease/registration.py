"""An executor's lease on its runs. Heartbeats extend the lease.

Once an executor's lease has expired by the database's clock, other executors queue its runs again. But the executor may
be alive, and only unable to reach the database. So an executor that cannot extend its lease ends its runs before the
lease expires by its own clock. If the executor is frozen, it cannot do that. Then the lease's guard
(`triggerer.executor.lease.lease_guard`) kills the workers before the lease expires.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from random import Random
from typing import Any, Final, Protocol

import anyio
import structlog
from anyio.abc import TaskStatus

from triggerer.backoff import Backoff, warn_seldom
from triggerer.errors import StoreError, StoreUnavailable, TransientStoreError
from triggerer.executor.lease.lease_guard_process import LeaseGuard
from triggerer.processes.own_lease import OwnLease, boottime
from triggerer.store.database.transactions import Database
from triggerer.store.streams import leases

_log = structlog.get_logger(__name__)

_KIND: Final = "executor"
_DEREGISTER_TIMEOUT: Final = timedelta(seconds=2)
# The following times are fractions of the lease's duration.
_INTERVAL: Final = 1 / 3
_RETRY_INTERVAL: Final = 1 / 10
"""The time from a failed heartbeat to the next."""
_TIMEOUT: Final = 1 / 6
"""The time limit for the statements of a heartbeat, and separately for its commit. If a heartbeat uses up both limits,
there is still time for another one."""
_MARGIN: Final = 1 / 10
"""The executor ends its runs this long before the end of the lease."""
_GUARD_MARGIN: Final = 1 / 15
"""The guard and all workers die this long before the end of the lease. A killed JVM needs this time to end, because the
kernel must free its memory first.
"""


class LeaseHolder(Protocol):
    """Executes runs under the lease. Its methods are called on the event loop."""

    def mark_lease_lost(self) -> None:
        """End all runs, and start none until `mark_lease_acquired`.

        Called shortly before other executors may start the runs, or when the lease's guard has died.
        """

    def mark_lease_acquired(self, guard: LeaseGuard) -> None:
        """Start runs from now on. Workers that start from now on must die with `guard`.

        Called once for each guard: at the start, after a lost lease, or after the death of the lease's guard.
        """


class InstanceQueries(Protocol):
    """The statements that record which instances are alive, as in `triggerer.store.streams.leases`."""

    async def register_instance(
        self, session: Any, instance_id: str, *, kind: str, expiry: timedelta
    ) -> None: ...

    async def deregister_instance(self, session: Any, instance_id: str) -> None: ...


class Registration:
    """Registers an executor as alive, so that no other executor takes its runs.

    Args:
        expiry: How long a heartbeat is valid.
        holder: Learns when the lease begins and ends. None with SQLite, which allows no other executor.
        clock: Returns seconds, see `OwnLease`. The guard's timer uses this clock, too.
        start_guard: Starts a guard that ends at the given time of `clock`.
    """

    def __init__(
        self,
        database: Database,
        instance_id: str,
        *,
        expiry: timedelta,
        holder: LeaseHolder | None,
        queries: InstanceQueries = leases,
        clock: Callable[[], float] = boottime,
        start_guard: Callable[[float], Awaitable[LeaseGuard]] = LeaseGuard.start,
        random: Random | None = None,
    ) -> None:
        self._database = database
        self._queries = queries
        self._start_guard = start_guard
        self._random = random or Random()
        self._instance_id = instance_id
        self._expiry = expiry
        self._holder = holder
        self._lease = OwnLease(expiry, margin=_MARGIN, clock=clock)
        self._guarded_lease = OwnLease(expiry, margin=_GUARD_MARGIN, clock=clock)
        self._guard: LeaseGuard | None = None

    @property
    def is_lease_valid(self) -> bool:
        """True while the lease is valid by this executor's own clock."""
        return not self._lease.is_over

    async def renew(self) -> None:
        """Extend the lease, so that it ends `expiry` from now.

        Raises:
            TransientStoreError: The lease was not extended. The caller may try again until the lease ends.
        """
        asked_at = self._lease.now()
        timeout = self._expiry * _TIMEOUT
        try:
            with anyio.fail_after(timeout.total_seconds()):
                async with self._database.transaction(commit_timeout=timeout) as session:
                    # Each heartbeat registers again, because another executor may have removed our row when this
                    # executor seemed dead. If that executor also took our runs, these runs have a new epoch, and the
                    # store refuses our results for them.
                    await self._queries.register_instance(
                        session, self._instance_id, kind=_KIND, expiry=self._expiry
                    )
        except TimeoutError as error:
            raise StoreUnavailable(
                f"{self._database.name} did not take a heartbeat within {timeout.total_seconds():g} s"
            ) from error
        self._lease.extend(asked_at)
        self._guarded_lease.extend(asked_at)
        if self._guard is not None:
            self._guard.extend(self._guarded_lease.ends_at)

    async def keep(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Renew until cancelled. Then deregister, so that other executors need not wait for the expiry.

        Call `renew` first, because the lease must be valid. The method calls `task_status.started` once the holder has
        received the lease's guard. Without a holder, it calls `task_status.started` at once.

        Raises:
            ConfigurationError: This system cannot run a guard.
        """
        try:
            async with anyio.create_task_group() as tasks:
                # Start renewing first, because the lease might end before its guard has started.
                tasks.start_soon(self._renew_in_time)
                if self._holder is not None:
                    await tasks.start(self._notify_holder, self._holder)
                task_status.started()
        finally:
            await self._deregister()

    async def _renew_in_time(self) -> None:
        lease_s = self._expiry.total_seconds()
        due = anyio.current_time() + lease_s * _INTERVAL
        failures = 0
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

    async def _notify_holder(
        self, holder: LeaseHolder, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Tell the holder, until cancelled, when it has a guarded lease, and when the lease is lost."""
        backoff = Backoff(first=0.1, longest=10.0, random=self._random)
        was_acquired = False
        while True:
            # This task watches the lease, because the renewing task may be waiting for the store.
            await self._lease.wait_until_extended()
            began = anyio.current_time()
            try:
                guard = await self._start_guard(self._guarded_lease.ends_at)
            except OSError as error:
                delay = backoff.next_delay()
                warn_seldom(
                    _log,
                    backoff.failures,
                    "the executor's lease cannot be guarded: no run is started",
                    error=str(error),
                    retry_after_s=round(delay, 3),
                )
                await anyio.sleep(delay)
                continue
            async with aclosing(guard):
                # A heartbeat may have extended the lease while the guard started.
                guard.extend(self._guarded_lease.ends_at)
                self._guard = guard
                if was_acquired:
                    _log.info("the executor's lease is held again")
                holder.mark_lease_acquired(guard)
                if not was_acquired:
                    was_acquired = True
                    task_status.started()
                await self._until_lost(guard)
                self._guard = None
                holder.mark_lease_lost()
            await anyio.sleep(backoff.next_delay(anyio.current_time() - began))

    async def _until_lost(self, guard: LeaseGuard) -> None:
        async with anyio.create_task_group() as tasks:

            async def end_with(wait: Callable[[], Awaitable[object]]) -> None:
                await wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end_with, self._lease.wait_until_over)
            tasks.start_soon(end_with, guard.wait)
        if self._lease.is_over:
            _log.warning("the executor's lease is over: its runs end, and are queued again")
        else:
            _log.warning(
                "the guard of the executor's lease has ended: its runs end, and are queued again",
                code=guard.returncode,
            )

    async def _deregister(self) -> None:
        with anyio.move_on_after(_DEREGISTER_TIMEOUT.total_seconds(), shield=True):
            try:
                async with self._database.transaction(
                    commit_timeout=_DEREGISTER_TIMEOUT
                ) as session:
                    await self._queries.deregister_instance(session, self._instance_id)
            except StoreError as error:
                # Ignore the error: a registration that is not extended expires.
                _log.warning("the executor could not sign off", error=str(error))
