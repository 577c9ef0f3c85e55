"""The executor's transactions for runs that it does not execute yet, or no longer executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import structlog

from triggerer.domain.attempts import RunOrder
from triggerer.observability.metrics.table import RUN_DELAY
from triggerer.store.database.script import Row, Script, Step, single_step
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.runs import transitions as queries
from triggerer.store.runs.attempts.claims import claim_runs, claimed_runs
from triggerer.store.runs.held import any_file_is_broken, hold_broken, release_due
from triggerer.store.runs.orphans import recover_orphans
from triggerer.store.runs.pooled_claims import (
    MOST_LOOKED_AT,
    any_run_may_use_pools,
    claim_with_pools,
)
from triggerer.store.runs.results import RunClaim

_log = structlog.get_logger(__name__)


class Claims:
    """Claims runs, and queues runs again. Each coroutine performs one transaction.

    Args:
        connect: The address of the Spark Connect server where runs open their sessions, without secrets. None: there
            is no server, and a run's session ends with its process.
    """

    def __init__(
        self,
        database: Database,
        executor: str,
        home: Path,
        pools: Mapping[str, int],
        *,
        holds_broken: bool = False,
        connect: str | None = None,
    ) -> None:
        self._pools = pools
        self._database = database
        self._executor = executor
        self._home = str(home.resolve())
        self._holds_broken = holds_broken
        self._connect = connect

    def claim_step(self, limit: int) -> Step:
        """Return a statement that claims up to `limit` queued runs. Pass the rows of the statement to `claimed`."""
        return claim_runs(
            executor=self._executor, limit=limit, log_home=self._home, connect=self._connect
        )

    def claimed(self, rows: Sequence[Row]) -> list[RunOrder]:
        """Return the runs that `claim_step` claimed, in the order of execution."""
        orders = claimed_runs(
            rows, executor=self._executor, log_home=self._home, connect=self._connect
        )
        if orders:
            _observe_delay(orders)
        return orders

    async def claim(
        self, limit: int, *, uses_pools: bool, has_broken_files: bool
    ) -> list[RunOrder]:
        """Claim up to `limit` queued runs in a separate transaction.

        Args:
            uses_pools: True: also claim runs that use pools, if the pools have free slots.
            has_broken_files: True: first hold the runs whose files do not load, so that no executor claims these runs.
        """
        if uses_pools:
            claim = claim_with_pools(
                executor=self._executor,
                limit=limit,
                log_home=self._home,
                slots=self._pools,
                connect=self._connect,
            )
        else:
            claim = single_step(self.claim_step(limit))
        if has_broken_files:
            claim = _around(claim, limit=MOST_LOOKED_AT if uses_pools else limit)
        return self.claimed(await self._database.perform(claim))

    async def has_broken_files(self) -> bool:
        """Return whether runs must be held because a file does not load."""
        if not self._holds_broken:
            return False
        async with self._database.reading() as session:
            return await any_file_is_broken(session)

    async def uses_pools(self) -> bool:
        """Return whether runs with pools may exist."""
        async with self._database.reading() as session:
            return await any_run_may_use_pools(session)

    async def to_cancel(self) -> list[int]:
        """Cancel the queued runs that users want cancelled. Return the keys of this executor's runs to cancel."""
        async with self._database.transaction() as session:
            ended = await queries.cancel_queued(session)
            if ended:
                announce(session, Signal.RUNS_ENDED, *ended)
            ours = await queries.running_of(session, executor=self._executor)
        return [pk for pk, run in ours.items() if run.cancel_requested]

    async def sweep(self, known: Set[int]) -> dict[int, RunClaim]:
        """Search the store for changes that no wake-up announced, and act on them.

        - Queue the runs of dead executors again. A run fails if too many executors have died during
          its attempts (`recover_orphans`).
        - Queue a run again if it runs on this executor according to the store, but is not in
          `known`. For example, the run's claim was committed, but the answer to the claim was lost.
        - Cancel queued runs that users want cancelled.
        - Release each held run whose next try is due (`release_due`).

        Returns:
            The runs that are now running on this executor, as the store shows them.
        """
        is_alone = self._database.dialect == "sqlite"
        async with self._database.transaction() as session:
            recovered = await recover_orphans(session, executor=self._executor, is_alone=is_alone)
            ours = await queries.running_of(session, executor=self._executor)
            unknown = {pk: ours.pop(pk).epoch for pk in ours.keys() - known}
            await queries.requeue_runs(session, executor=self._executor, epochs=unknown)
            cancelled = await queries.cancel_queued(session)
            released = await release_due(
                session, holds_broken=self._holds_broken, executor=self._executor, is_alone=is_alone
            )
            if recovered.requeued or unknown or released:
                announce(session, Signal.RUNS_QUEUED)
            if ended := {*recovered.given_up, *cancelled}:
                announce(session, Signal.RUNS_ENDED, *ended)
        if recovered.requeued or recovered.given_up:
            _log.warning(
                "runs of dead executors were found",
                requeued=len(recovered.requeued),
                given_up=len(recovered.given_up),
            )
        return ours

    async def requeue(self, orders: Sequence[RunOrder], *, have_begun: bool) -> None:
        """Queue runs again, except runs that another executor has taken.

        The attempts do not count towards `MAX_ATTEMPTS`, because this executor is still alive.

        Args:
            have_begun: False if no worker has begun any of these attempts.
        """
        if not orders:
            return
        async with self._database.transaction() as session:
            await queries.requeue_runs(
                session,
                executor=self._executor,
                epochs={order.run_pk: order.epoch for order in orders},
                have_begun=have_begun,
            )
            announce(session, Signal.RUNS_QUEUED, *{order.dag_id for order in orders})

    async def needs_spark(self) -> bool:
        """Return whether a task of an active DAG needs Spark."""
        async with self._database.reading() as session:
            return await queries.any_dag_needs_spark(session)


def _around(claim: Script[list[Row]], *, limit: int) -> Script[list[Row]]:
    """Return a script that holds the runs whose files do not load, and then claims."""
    yield from hold_broken(limit=limit)
    return (yield from claim)


def _observe_delay(orders: Sequence[RunOrder]) -> None:
    """Record the longest delay among the claimed runs, for the metrics.

    The delay is the time from a run's `run_after` until the run was queued. Only first attempts of scheduled runs
    count.
    """
    scheduled = [
        (order.queued_at - order.run_after).total_seconds()
        for order in orders
        if order.run_type == "scheduled" and order.attempt == 1
    ]
    if scheduled:
        RUN_DELAY.observe(max(*scheduled, 0.0))
