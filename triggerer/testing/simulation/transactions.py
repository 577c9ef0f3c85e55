"""Transactions on the model of the database: they are slow, fail, conflict, or end with an unknown outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import starmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

from triggerer.domain.conditions import assets_of, condition_to_json
from triggerer.errors import Conflict, OutcomeUnknown, RowRefused, StoreUnavailable
from triggerer.store.engine.script import Row, Script, Step, perform_stepwise
from triggerer.store.engine.statement import BoundStatement
from triggerer.store.queries.scheduling.candidates import LockDags, LockFreeDags, Timed
from triggerer.store.queries.scheduling.new_run import CreateRun, EventSelection, Unchanged
from triggerer.store.queries.scheduling.reading import ReadDags
from triggerer.store.recording.bulk import EventRow, InsertEvents
from triggerer.store.recording.record_step import RecordEvents
from triggerer.store.wakeups.signals import Announced, Wakeups, announce, announced_in
from triggerer.synchronization import Notifier
from triggerer.testing.simulation.parked_writes import PARKED, ParkedWrites
from triggerer.testing.simulation.position_writes import POSITIONS, PositionWrites
from triggerer.testing.simulation.store import REFUSED, Dag, Owners, Run, Store

if TYPE_CHECKING:
    from triggerer.domain.events import Fence

T = TypeVar("T")
NEVER = datetime(9999, 1, 1, tzinfo=UTC)
_NO_ASSET = (None, None, None, None, 0, None)


class Database:
    """Stands in for `Database` in one process; it has the locks, which a crash releases."""

    name = "the database"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_alive = True
        """Whether its process is alive: what a dead one sends never arrives."""
        self.wakeups = Wakeups()
        self.transport = SimpleNamespace(sender="this process")
        store.wakeups = self.wakeups
        self.turn = anyio.Semaphore(1)
        self.locks: dict[str, anyio.Semaphore] = {}
        self.sharing: set[Transaction] = set()
        """Transactions with a shared lock on the streams' rows, so that no lease can be claimed."""
        self.claiming: Transaction | None = None
        """The transaction that changes them."""
        self._unshared = Notifier()

    @property
    def dialect(self) -> str:
        return "sqlite" if self.store.scenario.is_exclusive else "postgresql"

    def lock(self, name: str) -> anyio.Semaphore:
        return self.locks.setdefault(name, anyio.Semaphore(1))

    async def until_unshared(self) -> None:
        """Wait until nobody has a lock on the streams' rows; that holds until the caller awaits again."""
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
            # In the same step as what the caller does next.
            session.on_success(session.told_leases)
        finally:
            session.release()
            if store.scenario.is_exclusive:
                self.turn.release()

    async def perform(self, script: Script[T]) -> T:
        """A transaction of the script's own; each of its steps takes a while."""
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
            raise Conflict("somebody else's transaction won")
        if faults.occur(rate):
            drawn = faults.random.random()
            if drawn < 0.4:
                session.apply()
            elif drawn < 0.7 and not self.store.scenario.is_exclusive:
                self._commit_later(session)
            raise OutcomeUnknown("the connection broke while a commit was under way")
        session.apply()

    def _commit_later(self, session: Transaction) -> None:
        """The commit arrives after the caller was told that its outcome is unknown; it keeps its locks until then."""
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
    """One transaction: answers the steps of the product's scripts, and ends runs."""

    def __init__(self, database: Database) -> None:
        self.info: dict[str, Any] = {}
        self.told_leases: list[Fence] = []
        """The leases that a heartbeat says the host owns; `on_success` gets them once it has committed."""
        self.on_success: Callable[[list[Fence]], None] = lambda _: None
        self.store = database.store
        self.is_pending = False
        self._database = database
        self._rows: list[tuple[int, int, datetime, int, str, int]] = []
        self._positions = PositionWrites()
        self._parked = ParkedWrites()
        self._made: list[Run] = []
        self._taken: dict[tuple[str, int], int] = {}
        self._owners: Owners | None = None
        self._held: list[anyio.Semaphore] = []
        self._ended: list[int] = []

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
            case LockDags(dag_ids=dag_ids):
                await self._lock_dags(dag_ids)
                return []
            case LockFreeDags(dag_ids=dag_ids):
                return [(dag_id,) for dag_id in sorted(dag_ids) if self._lock_free(dag_id)]
            case ReadDags(dag_ids=dag_ids, bound=bound):
                await self.store.faults.delay()
                return self._waiting(dag_ids, bound)
            case RecordEvents():
                return [await self._record(step)]
            case BoundStatement(statement=statement, values=values) if statement in POSITIONS:
                await self.store.faults.delay()
                return await self._positions.perform(self, statement, values["rows"].rows)
            case BoundStatement(statement=statement, values=values) if statement in PARKED:
                return await self._parked.perform(self, statement, values)
            case InsertEvents(rows=rows):
                await self.store.faults.delay()
                return [(self._insert(rows), None)]
            case CreateRun(unchanged=None):
                await self.store.faults.delay()
                return [self._create(step)]
            case CreateRun(dag_id=dag_id, unchanged=Unchanged() as unchanged):
                await self._lock_dags([dag_id])
                version = self.store.versions[dag_id]
                is_as_read = str(version) == unchanged.version
                await self.store.faults.delay()
                return [self._create(step)] if is_as_read else []
        raise NotImplementedError(f"the model of the database does not know the step {step}")

    # What the recorder asks

    async def _record(self, step: RecordEvents) -> Row:
        """Insert the events whose leases hold; nobody can claim those until this transaction ends."""
        await self.store.faults.delay()
        await self._database.share(self)
        leases = self.store.owners.leases
        held = [
            number
            for number, (digest, *lease) in enumerate(step.fences, 1)
            if leases.get(digest) == tuple(lease)
        ]
        await self.store.faults.delay()
        rows = zip(
            starmap(EventRow, zip(*step.columns, strict=True)), step.fence_numbers, strict=True
        )
        return self._insert([row for row, number in rows if number in {0, *held}]), held

    # What the writer of positions asks

    async def lock_row(self, name: str) -> None:
        """Lock a row until the end of this transaction."""
        lock = self._database.lock(name)
        await lock.acquire()
        self._held.append(lock)

    async def share_streams(self) -> None:
        """Lock the streams' rows, so that no lease can be claimed until the end of this transaction."""
        await self._database.share(self)

    # What the hosts ask

    async def owners(self) -> Owners:
        """Instances and leases as they will be after the commit, locked; change them in place."""
        if self._owners is None:
            await self.store.faults.delay()
            await self._database.claim(self)
            self._owners = self.store.owners.copy()
        return self._owners

    def _insert(self, rows: Sequence[EventRow]) -> list[str]:
        """Insert asset events; return the DAGs that may wait for them."""
        for row in rows:
            watcher, key, ordinal = row.watcher_id, row.idempotency_key, row.ordinal
            if REFUSED in row.extra:
                self.store.checker.refused.add((watcher, key, ordinal))
                self.store.answered.add(row.timestamp)
                raise RowRefused("a NUL byte")
            self._rows.append(
                (self.store.next_id(), row.asset_id, row.timestamp, watcher, key, ordinal)
            )
        assets = {row.asset_id for row in rows}
        return [
            dag.dag_id
            for dag in self.store.dags.values()
            if assets & {self.store.asset_ids[asset.name] for asset in assets_of(dag.condition)}
        ]

    # What the scheduler asks

    async def _lock_dags(self, dag_ids: Collection[str]) -> None:
        for dag_id in sorted(dag_ids):
            lock = self._database.lock(dag_id)
            await lock.acquire()
            self._held.append(lock)

    def _lock_free(self, dag_id: str) -> bool:
        lock = self._database.lock(dag_id)
        try:
            lock.acquire_nowait()
        except anyio.WouldBlock:
            return False
        self._held.append(lock)
        return True

    def _waiting(self, dag_ids: Collection[str], bound: int) -> list[Row]:
        rows: list[Row] = []
        for dag_id in dag_ids:
            dag = self.store.dags[dag_id]
            names = {self.store.asset_ids[one.name]: one for one in assets_of(dag.condition)}
            found: list[Row] = [
                (asset, names[asset].name, names[asset].uri, None, min(len(events), bound), None)
                for asset, events in self.untaken(dag).items()
            ]
            rows += [(*self._dag_columns(dag), *one) for one in found or [_NO_ASSET]]
        return rows

    def _dag_columns(self, dag: Dag) -> Row:
        """In the order of `triggerer.store.queries.scheduling.reading`."""
        store = self.store
        plain: Row = (dag.dag_id, condition_to_json(dag.condition), {})
        bounds = (dag.max_active_runs, dag.events_per_run, False, False)
        time = (None, None, False, None, None, False, NEVER, None, None, None)
        version, active = str(store.versions[dag.dag_id]), store.active_runs(dag.dag_id)
        return (*plain, *bounds, *time, store.now(), version, active, None, None)

    def _create(self, step: CreateRun) -> Row:
        run = Run(self.store.next_id(), step.dag_id)
        self._made.append(run)
        waiting = self.untaken(self.store.dags[step.dag_id])
        selection = step.selection or EventSelection(0)
        for asset in waiting if selection.per_asset is None else selection.asset_ids:
            for event in waiting.get(asset, [])[: selection.per_asset]:
                self._taken[step.dag_id, event] = run.pk
        return run.pk, str(run.pk), step.run_after or self.store.now()

    def untaken(self, dag: Dag) -> dict[int, list[int]]:
        """As `Store.waiting`, without the events that this transaction has taken."""
        return {
            asset: left
            for asset, events in self.store.waiting(dag).items()
            if (left := [one for one in events if (dag.dag_id, one) not in self._taken])
        }

    def end_run(self, pk: int) -> None:
        self._ended.append(pk)

    # The commit

    def apply(self) -> None:
        """Make all of it durable at once."""
        store, checker = self.store, self.store.checker
        if self._owners is not None:
            store.owners = self._owners
        for event, asset, timestamp, watcher, key, ordinal in self._rows:
            if watcher:
                self._check_lease(store.derived_under[timestamp], key)
                store.answered.add(timestamp)
            if (watcher, key, ordinal) in checker.durable:
                continue
            checker.durable.add((watcher, key, ordinal))
            store.events[event] = asset
            if watcher and checker.lagging.is_on:
                checker.lagging.on_stored(watcher, key)
            for dag in store.dags.values():
                if asset in {store.asset_ids[one.name] for one in assets_of(dag.condition)}:
                    store.queues[dag.dag_id][event] = None
        self._positions.apply(store)
        self._parked.apply(store)
        self._apply_runs()
        for pk in self._ended:
            store.runs[pk].is_ended = True
        for signal, subjects in announced_in(cast("Any", self)).items():
            store.wakeups.publish(signal, *sorted(subjects))

    def _check_lease(self, fence: Fence, key: str) -> None:
        digest, *lease = fence
        holder = self.store.owners.leases[digest]
        if holder != tuple(lease):
            self.store.checker.fail("S6", f"{key} was written under {fence}, and {holder} holds it")

    def _apply_runs(self) -> None:
        store, checker = self.store, self.store.checker
        by_pk = {run.pk: run for run in self._made}
        for (dag_id, event), pk in self._taken.items():
            if store.queues[dag_id][event] is None:
                # The UPDATE checks it again, after waiting for other transactions that change the row.
                store.queues[dag_id][event] = pk
                by_pk[pk].events.append(event)
        for run in self._made:
            dag = store.dags[run.dag_id]
            counts: dict[int, int] = {}
            for event in run.events:
                asset = store.events[event]
                counts[asset] = counts.get(asset, 0) + 1
            if not store.is_due(dag, counts):
                checker.fail(
                    "S4", f"a run of {run.dag_id} took {run.events}: not what it waits for"
                )
            if dag.events_per_run and max(counts.values(), default=0) > dag.events_per_run:
                checker.fail("S4", f"a run of {run.dag_id} took {counts} events by asset")
            if store.active_runs(run.dag_id) >= dag.max_active_runs:
                checker.fail("S9", f"{run.dag_id} has more than {dag.max_active_runs} active runs")
            store.runs[run.pk] = run
            store.versions[run.dag_id] += 1


async def find_candidates(session: Transaction) -> list[str]:
    """As `triggerer.store.queries.scheduling.candidates`: DAGs for which an event waits."""
    store = session.store
    await store.faults.delay()
    return [dag_id for dag_id, dag in store.dags.items() if store.waiting(dag)]


async def find_timed(session: Transaction) -> Timed:
    """Likewise: DAGs that a timetable makes due."""
    await session.store.faults.delay()
    return Timed(session.store.now(), {})
