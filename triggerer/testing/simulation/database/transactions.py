"""Transactions of the simulated database. They may be slow, fail, conflict, or end with an unknown outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import starmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from triggerer.domain.watchers.lane_positions import ReplayRequest
from triggerer.errors import Conflict, OutcomeUnknown, RowRefused, StoreUnavailable
from triggerer.store.dags.candidates import LockDags, LockFreeDags
from triggerer.store.dags.due_moments import StoreNextRun
from triggerer.store.dags.snapshots import ReadDags
from triggerer.store.database.script import Row, Script, Step, perform_stepwise
from triggerer.store.database.statement import BoundStatement
from triggerer.store.database.wakeups.signals import (
    Announced,
    Signal,
    Wakeups,
    announce,
    announced_in,
)
from triggerer.store.events.batch_statement import RecordEvents
from triggerer.store.events.bulk_insert import EventRow, InsertEvents
from triggerer.store.partitions.keys import StoreNextKey, TakePartition
from triggerer.store.runs.creation.create_run_step import CreateRun
from triggerer.store.runs.creation.planned_runs import CreateRuns
from triggerer.store.watchers.parked import StoreBodies
from triggerer.synchronization import Notifier
from triggerer.testing.simulation.database.model import REFUSED, Dag, Owners, Store
from triggerer.testing.simulation.database.parked_writes import PARKED, Decision, ParkedWrites
from triggerer.testing.simulation.database.partition_writes import (
    PARTITIONS,
    PartitionWrites,
    follow_change,
)
from triggerer.testing.simulation.database.planning_writes import PlanningWrites
from triggerer.testing.simulation.database.position_writes import POSITIONS, PositionWrites
from triggerer.testing.simulation.kernel.delivery import plain_key

if TYPE_CHECKING:
    from datetime import datetime

    from triggerer.domain.events import Fence
    from triggerer.store.watchers.hosting import WatcherState
    from triggerer.testing.simulation.kernel.delivery import ParkedRow

T = TypeVar("T")


class Database:
    """Stands in for the store's `Database` in one process. A crash of the process releases the locks."""

    name = "the database"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_alive = True
        """Whether the process is alive. Requests of a dead process never arrive."""
        self.wakeups = Wakeups()
        self.transport = SimpleNamespace(sender="this process")
        store.wakeups = self.wakeups
        self.turn = anyio.Semaphore(1)
        self.locks: dict[str, anyio.Semaphore] = {}
        self.sharing: set[Transaction] = set()
        """Transactions that share a lock on the streams' rows. The lock prevents claims of leases."""
        self.claiming: Transaction | None = None
        """The transaction with the exclusive lock on the streams' rows."""
        self._unshared = Notifier()

    @property
    def dialect(self) -> str:
        return "sqlite" if self.store.scenario.is_exclusive else "postgresql"

    def connect(self) -> Database:
        """Return a connection for another process, which may crash alone. All connections share the locks on rows."""
        other = Database(self.store)
        other.wakeups, other.turn, other.locks = self.wakeups, self.turn, self.locks
        self.store.wakeups = self.wakeups
        return other

    async def change_dag(
        self, dag: Dag, *, is_paused: bool | None = None, is_stale: bool | None = None
    ) -> None:
        """Store a DAG after its file was read, or after it was paused or resumed."""
        async with self.transaction() as session:
            await session.change_dag(dag, is_paused, is_stale)

    def lock(self, name: str) -> anyio.Semaphore:
        return self.locks.setdefault(name, anyio.Semaphore(1))

    async def until_unshared(self) -> None:
        """Wait until the streams' rows are unlocked. They stay so until the caller's next await."""
        while self.sharing or self.claiming is not None:
            await self._unshared.wait()

    async def share(self, session: Transaction) -> None:
        while self.claiming is not None:
            await self._unshared.wait()
        self.sharing.add(session)

    async def claim(self, session: Transaction) -> None:
        await self.until_unshared()
        self.claiming = session

    def unshare(self, session: Transaction) -> None:
        self.sharing.discard(session)
        if self.claiming is session:
            self.claiming = None
        self._unshared.notify_all()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        store = self.store
        if store.scenario.is_exclusive:
            await self.turn.acquire()
        session = Transaction(self)
        try:
            await store.faults.delay()
            if store.faults.occur(store.scenario.store_fault_rate):
                raise StoreUnavailable("the database does not answer")
            yield session
            with anyio.CancelScope(shield=True):
                await self._commit(session)
            # Report the new leases now, before any other task runs.
            session.on_success(session.granted_leases)
        finally:
            session.release()
            if store.scenario.is_exclusive:
                self.turn.release()

    async def perform(self, script: Script[T]) -> T:
        """Perform a script in a transaction of its own. Each step takes a while."""
        async with self.transaction() as session:
            return await session.perform(script)

    async def perform_step(self, step: Step) -> list[Row]:
        async with self.transaction() as session:
            return await session.answer(step)

    async def announce_here(self, announced: Announced) -> None:
        for signal, subjects in announced.items():
            self.wakeups.publish(signal, *sorted(subjects))

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Transaction]:
        await self.store.faults.delay()
        if self.store.faults.occur(self.store.scenario.store_fault_rate):
            raise StoreUnavailable("the database does not answer")
        yield Transaction(self)

    async def _commit(self, session: Transaction) -> None:
        faults, rate = self.store.faults, self.store.scenario.store_fault_rate
        await faults.delay()
        if not self.is_alive:
            return
        if faults.occur(rate / 2):
            raise Conflict("another transaction won")
        if faults.occur(rate):
            drawn = faults.random.random()
            if drawn < 0.4:
                session.apply()
            elif drawn < 0.7 and not self.store.scenario.is_exclusive:
                self._commit_later(session)
            raise OutcomeUnknown("the connection broke while a commit was under way")
        session.apply()

    def _commit_later(self, session: Transaction) -> None:
        """Let the commit arrive after the caller has raised `OutcomeUnknown`.

        The transaction's locks stay until the commit arrives.
        """
        store = self.store
        number = store.next_id()
        store.pending_commits[number] = session.apply
        session.is_pending = True

        def arrive() -> None:
            store.pending_commits.pop(number)()
            session.is_pending = False
            session.release()

        delay = store.faults.random.uniform(0.0, 3.0)
        asyncio.get_running_loop().call_later(delay, arrive)


class Transaction:
    """One transaction: performs the steps of the product's scripts, and ends runs."""

    def __init__(self, database: Database) -> None:
        self.info: dict[str, Any] = {}
        self.granted_leases: list[Fence] = []
        """The leases that the host owns according to its heartbeat. The callback `on_success` gets them after the
        commit.
        """
        self.on_success: Callable[[list[Fence]], None] = lambda _: None
        self.store = database.store
        self.is_pending = False
        self._database = database
        self._rows: list[tuple[int, EventRow]] = []
        """The inserted events, with their ids."""
        self._positions = PositionWrites()
        self._parked = ParkedWrites()
        self._planning = PlanningWrites()
        self._partitions = PartitionWrites()
        self._owners: Owners | None = None
        self._skew = database.store.skew
        self._held: list[anyio.Semaphore] = []
        self._ended: list[int] = []
        self._shown: list[WatcherState] = []
        self._asked: list[ReplayRequest] = []

    def release(self) -> None:
        if self.is_pending:
            return
        self._database.unshare(self)
        for lock in self._held:
            lock.release()
        self._held.clear()

    async def perform(self, script: Script[T]) -> T:
        announced: Announced = {}
        result = await perform_stepwise(self.answer, script, announced)
        for signal, subjects in announced.items():
            announce(cast("Any", self), signal, *sorted(subjects))
        return result

    async def answer(self, step: Step) -> list[Row]:
        match step:
            case (
                LockDags()
                | LockFreeDags()
                | ReadDags()
                | CreateRun()
                | CreateRuns()
                | StoreNextRun()
            ):
                return await self._planning.perform(self, step)
            case RecordEvents():
                return [await self._record(step)]
            case BoundStatement(statement=statement, values=values) if statement in POSITIONS:
                await self.store.faults.delay()
                return await self._positions.perform(self, statement, values)
            case BoundStatement(statement=statement, values=values) if statement in PARKED:
                return await self._parked.perform(self, statement, values)
            case StoreBodies():
                return await self._parked.keep_bodies(self, step)
            case TakePartition() | StoreNextKey():
                await self.store.faults.delay()
                return self._partitions.perform(self.store, step)
            case BoundStatement(statement=statement) if statement in PARTITIONS:
                await self.store.faults.delay()
                return self._partitions.perform(self.store, step)
            case InsertEvents(rows=rows):
                await self.store.faults.delay()
                return [(self._insert(rows), None)]
        raise NotImplementedError(f"the model of the database does not know the step {step}")

    # The recorder

    async def _record(self, step: RecordEvents) -> Row:
        """Insert the events whose leases hold. No instance can claim their streams until this transaction ends."""
        await self.store.faults.delay()
        await self._database.share(self)
        leases = self.store.owners.leases
        held = [
            number
            for number, (digest, *lease) in enumerate(step.fences, 1)
            if leases.get(digest) == tuple(lease)
        ]
        await self.store.faults.delay()
        rows = starmap(EventRow, zip(*step.rows.columns(), strict=True))
        numbered = zip(rows, step.rows.fence_numbers(), strict=True)
        return self._insert([row for row, number in numbered if number in {0, *held}]), held

    # The writers of positions and states

    async def lock_row(self, name: str) -> None:
        """Lock a row until the end of this transaction."""
        lock = self._database.lock(name)
        await lock.acquire()
        self._held.append(lock)

    def lock_free_row(self, name: str) -> bool:
        """Lock a row unless another transaction has locked it. Return whether this transaction has the lock."""
        lock = self._database.lock(name)
        try:
            lock.acquire_nowait()
        except anyio.WouldBlock:
            return False
        self._held.append(lock)
        return True

    async def share_streams(self) -> None:
        """Lock the streams' rows against claims of leases until the end of this transaction."""
        await self._database.share(self)

    async def show(self, states: Sequence[WatcherState]) -> None:
        """Write states of watchers, and lock their rows until the end of this transaction."""
        if not self.lock_free_row("states of watchers"):
            await self.lock_row("states of watchers")
        self._shown.extend(states)

    # The operator

    async def decide_parked(self, decide: Callable[[ParkedRow], Decision]) -> None:
        """Act as `triggerer watchers parked replay` and `discard`, and announce replayed messages to their owners."""
        digests = await self._parked.decide(self, decide)
        announce(cast("Any", self), Signal.STREAMS_CHANGED, *sorted(digests))

    async def ask_for_replay(
        self, digest: str, watcher: int, start: datetime | None, *, reemit: bool
    ) -> None:
        """Act as `triggerer watchers replay`."""
        await self.store.faults.delay()
        self._asked.append(ReplayRequest(self.store.next_id(), watcher, start, reemit))
        announce(cast("Any", self), Signal.STREAMS_CHANGED, digest)

    # The hosts

    async def owners(self) -> Owners:
        """Lock instances and leases. Return a copy of them, which the caller changes and the commit stores."""
        if self._owners is None:
            await self.store.faults.delay()
            await self._database.claim(self)
            self._owners = self.store.owners.copy()
            self._skew = self.store.skew
        return self._owners

    def _insert(self, rows: Sequence[EventRow]) -> list[str]:
        """Insert asset events. Return the DAGs that may wait for them."""
        for row in rows:
            watcher, key, ordinal = row.watcher_id, row.idempotency_key, row.ordinal
            if REFUSED in row.extra:
                self.store.checker.refused |= {
                    (watcher, key, ordinal),
                    (watcher, plain_key(key), ordinal),
                }
                self.store.answered.add(row.timestamp)
                raise RowRefused("a NUL byte")
            self._rows.append((self.store.next_id(), row))
        assets = {row.asset_id for row in rows}
        return [
            dag.dag_id
            for dag in self.store.dags.values()
            if assets & dag.waits_for(self.store.asset_ids)
        ]

    async def change_dag(self, dag: Dag, is_paused: bool | None, is_stale: bool | None) -> None:
        await self._planning.change_dag(self, dag, is_paused, is_stale)
        store, dag_id = self.store, dag.dag_id
        is_resumed = store.states[dag_id].is_paused and is_paused is False
        if (change := follow_change(store.dags[dag_id], dag, is_resumed)) is not None:
            self._partitions.change(store, dag_id, change)
        announce(cast("Any", self), Signal.DAGS_CHANGED, dag.dag_id)

    def end_run(self, pk: int) -> None:
        self._ended.append(pk)

    # The commit

    def apply(self) -> None:
        """Make all changes durable at once."""
        store, checker = self.store, self.store.checker
        if self._owners is not None:
            store.owners = self._owners
            if store.skew != self._skew:
                # The clock was set during the transaction, so the transaction may have claimed a lease before its end.
                store.mark_shortened(self._owners.leases)
        for event, row in self._rows:
            asset, timestamp = row.asset_id, row.timestamp
            watcher, key, ordinal = row.watcher_id, row.idempotency_key, row.ordinal
            if watcher:
                self._check_lease(store.derived_under[timestamp], key)
                store.answered.add(timestamp)
            if (watcher, key, ordinal) in checker.durable:
                continue
            checker.durable.add((watcher, key, ordinal))
            store.events[event] = asset
            store.event_times[event] = timestamp
            store.event_keys[event] = row.partition_key
            if watcher and checker.catching_up.is_on:
                checker.replays.on_stored(watcher, key, ordinal)
            for dag in store.dags.values():
                if asset in dag.waits_for(store.asset_ids):
                    store.queues[dag.dag_id][event] = None
        self._positions.apply(store)
        self._parked.apply(store)
        self._partitions.apply(store)
        self._planning.apply(store)
        if store.times is not None:
            store.times.on_committed()
        for pk in self._ended:
            store.runs[pk].is_ended = True
        declared = store.declared
        for request in self._asked:
            if request.watcher_id in declared:
                store.replays[request.id] = request
        for state in self._shown:
            digest, *lease = state.fence
            if store.owners.leases[digest] == tuple(lease) and state.trigger_id in store.triggers:
                store.watcher_states[state.watcher_id] = state
        for signal, subjects in announced_in(cast("Any", self)).items():
            store.wakeups.publish(signal, *sorted(subjects))

    def _check_lease(self, fence: Fence, key: str) -> None:
        digest, *lease = fence
        holder = self.store.owners.leases[digest]
        if holder != tuple(lease):
            self.store.checker.fail(
                "S6", f"{key} was written under {fence}, but {holder} has the lease"
            )
