"""A model of the database: what the recorder and the scheduler ask of it, with transactions that fail in every way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio

from triggerer.domain.conditions import Condition, assets_of, condition_to_json, is_satisfied
from triggerer.domain.events import Fence
from triggerer.errors import Conflict, OutcomeUnknown, RowRefused, StoreUnavailable
from triggerer.store.queries.runs import CreatedRun, WaitingRow
from triggerer.store.wakeups import Signal, Wakeups, announce, announced_in

if TYPE_CHECKING:
    from triggerer.testing.simulation.chance import Chance
    from triggerer.testing.simulation.checker import Checker
    from triggerer.testing.simulation.plan import Plan

REFUSED = "\\u0000"
"""What the store refuses to write, as in PostgreSQL's JSON."""
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Dag:
    """A DAG that waits for assets."""

    dag_id: str
    condition: Condition
    max_active_runs: int
    events_per_run: int | None


@dataclass(slots=True)
class Run:
    """A run, and the events that it took."""

    pk: int
    dag_id: str
    events: list[int] = field(default_factory=list)
    is_ended: bool = False


class Store:
    """What is durable. Only `Transaction`s change it, all at once."""

    def __init__(self, plan: Plan, chance: Chance, checker: Checker) -> None:
        self.plan = plan
        self.chance = chance
        self.checker = checker
        self.dags: dict[str, Dag] = {}
        self.asset_ids: dict[str, int] = {}
        self.leases: dict[str, tuple[str, int]] = {}
        self.derived_under: dict[datetime, Fence] = {}
        """The lease under which the filter ran that yielded an event, by the event's timestamp: no two are equal."""
        self.events: dict[int, int] = {}
        """The asset of each event, by the event's id."""
        self.queues: dict[str, dict[int, int | None]] = {}
        """For each DAG its events, and the run that took each."""
        self.runs: dict[int, Run] = {}
        self.wakeups: Wakeups = Wakeups()
        self.landing: dict[int, Callable[[], None]] = {}
        """Commits that were sent and have not arrived; a crash does not stop them."""
        self.skew = timedelta()
        self._last_id = 0

    def next_id(self) -> int:
        """From a sequence: given out when a row is inserted, which says nothing about when it is committed."""
        self._last_id += 1
        return self._last_id

    def now(self) -> datetime:
        return _EPOCH + self.skew + timedelta(seconds=asyncio.get_running_loop().time())

    def waiting(self, dag: Dag) -> dict[int, list[int]]:
        """The DAG's events that no run has taken, by asset, oldest first."""
        found: dict[int, list[int]] = {}
        for event, run in sorted(self.queues[dag.dag_id].items()):
            if run is None:
                found.setdefault(self.events[event], []).append(event)
        return found

    def is_due(self, dag: Dag, assets: Collection[int]) -> bool:
        return is_satisfied(dag.condition, lambda leaf: self.asset_ids[leaf.name] in assets)

    def active_runs(self, dag_id: str) -> int:
        return sum(run.dag_id == dag_id and not run.is_ended for run in self.runs.values())

    def idle_reason(self) -> str | None:
        """Why the DAGs are not done yet; None once they are."""
        for dag in self.dags.values():
            if self.active_runs(dag.dag_id):
                return f"{dag.dag_id} has a run that has not ended"
            if self.is_due(dag, self.waiting(dag)):
                return f"{dag.dag_id} is due for {self.waiting(dag)} and gets no run"
        return None


class Database:
    """Stands in for `triggerer.store.Database` in one process life; locks are its own, since a crash frees them."""

    def __init__(self, store: Store, process: Any) -> None:
        self.store = store
        self.process = process
        self.wakeups = Wakeups()
        store.wakeups = self.wakeups
        self.turn = anyio.Semaphore(1)
        self.locks: dict[str, anyio.Semaphore] = {}
        self.sharing: set[Transaction] = set()
        """Transactions that hold the streams' rows, so that no lease can be taken over."""
        self._unshared = anyio.Event()

    def lock(self, name: str) -> anyio.Semaphore:
        return self.locks.setdefault(name, anyio.Semaphore(1))

    async def until_unshared(self) -> None:
        """Wait for the lock on the streams' rows; nothing is held until the caller awaits again."""
        while self.sharing:
            self._unshared = anyio.Event()
            await self._unshared.wait()

    def unshare(self, session: Transaction) -> None:
        self.sharing.discard(session)
        self._unshared.set()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        store = self.store
        if store.plan.is_exclusive:
            await self.turn.acquire()
        session = Transaction(self)
        try:
            await store.chance.delay()
            if store.chance.strikes(store.plan.store_trouble):
                raise StoreUnavailable("the database does not answer")
            yield session
            with anyio.CancelScope(shield=True):
                await self._commit(session)
        finally:
            session.release()
            if store.plan.is_exclusive:
                self.turn.release()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Transaction]:
        await self.store.chance.delay()
        if self.store.chance.strikes(self.store.plan.store_trouble):
            raise StoreUnavailable("the database does not answer")
        yield Transaction(self)

    async def _commit(self, session: Transaction) -> None:
        chance, trouble = self.store.chance, self.store.plan.store_trouble
        await chance.delay()
        if not self.process.is_alive:
            return
        if chance.strikes(trouble / 2):
            raise Conflict("somebody else's transaction won")
        if chance.strikes(trouble):
            drawn = chance.random.random()
            if drawn < 0.4:
                session.apply()
            elif drawn < 0.7 and not self.store.plan.is_exclusive:
                self._land_later(session)
            raise OutcomeUnknown("the connection broke while a commit was under way")
        session.apply()

    def _land_later(self, session: Transaction) -> None:
        """The commit goes through when nobody looks any more; until then the server keeps its locks."""
        store = self.store
        number = store.next_id()
        store.landing[number] = session.apply
        session.is_landing = True

        def land() -> None:
            store.landing.pop(number)()
            session.is_landing = False
            session.release()

        delay = store.chance.random.uniform(0.0, 3.0)
        asyncio.get_running_loop().call_later(delay, land)


class _Dialect:
    name = "postgresql"


class Transaction:
    """Stands in for SQLAlchemy's session: the few statements of the recorder, and answers to the scheduler."""

    dialect = _Dialect()

    def __init__(self, database: Database) -> None:
        self.info: dict[str, Any] = {}
        self.store = database.store
        self.is_landing = False
        self._database = database
        self._rows: list[tuple[int, int, datetime, int, str, int]] = []
        self._made: list[Run] = []
        self._taken: dict[tuple[str, int], int] = {}
        self._held: list[anyio.Semaphore] = []
        self._ended: list[int] = []

    def release(self) -> None:
        if self.is_landing:
            return
        self._database.unshare(self)
        for lock in self._held:
            lock.release()
        self._held.clear()

    # What the recorder says

    async def execute(self, _: Any) -> list[tuple[str, str, int]]:
        """The leases, which nobody can take over until this transaction is at its end."""
        await self.store.chance.delay()
        self._database.sharing.add(self)
        return [Fence(digest, *lease) for digest, lease in self.store.leases.items()]

    async def connection(self) -> Transaction:
        return self

    async def exec_driver_sql(self, _: str, params: tuple[Any, ...]) -> Transaction:
        """Insert asset events, given column by column as `triggerer.store.bulk` does."""
        await self.store.chance.delay()
        _, assets, extras, timestamps, watchers, keys, ordinals = params
        for asset, extra, timestamp, watcher, key, ordinal in zip(
            assets, extras, timestamps, watchers, keys, ordinals, strict=True
        ):
            if REFUSED in extra:
                self.store.checker.refused.add((watcher, key, ordinal))
                raise RowRefused("a NUL byte")
            self._rows.append((self.store.next_id(), asset, timestamp, watcher, key, ordinal))
        return self

    def one(self) -> tuple[list[str], None]:
        assets = {asset for _, asset, *_ in self._rows}
        waiting = [
            dag.dag_id
            for dag in self.store.dags.values()
            if assets & {self.store.asset_ids[asset.name] for asset in assets_of(dag.condition)}
        ]
        return waiting, None

    # What the scheduler asks

    async def lock_dags(self, dag_ids: Collection[str]) -> None:
        for dag_id in sorted(dag_ids):
            lock = self._database.lock(dag_id)
            await lock.acquire()
            self._held.append(lock)

    def make_run(self, dag_id: str) -> Run:
        run = Run(self.store.next_id(), dag_id)
        self._made.append(run)
        return run

    def untaken(self, dag: Dag) -> dict[int, list[int]]:
        """As `Store.waiting`, without what this transaction has taken."""
        return {
            asset: left
            for asset, events in self.store.waiting(dag).items()
            if (left := [one for one in events if (dag.dag_id, one) not in self._taken])
        }

    def take(self, dag_id: str, event: int, run: int) -> None:
        self._taken[dag_id, event] = run

    def end_run(self, pk: int) -> None:
        self._ended.append(pk)

    # The commit

    def apply(self) -> None:
        """Make all of it durable at once."""
        store, checker = self.store, self.store.checker
        for event, asset, timestamp, watcher, key, ordinal in self._rows:
            if watcher:
                self._check_lease(store.derived_under[timestamp], key)
            if (watcher, key, ordinal) in checker.durable:
                continue
            checker.durable.add((watcher, key, ordinal))
            store.events[event] = asset
            for dag in store.dags.values():
                if asset in {store.asset_ids[one.name] for one in assets_of(dag.condition)}:
                    store.queues[dag.dag_id][event] = None
        self._apply_runs()
        for pk in self._ended:
            store.runs[pk].is_ended = True
        for signal, subjects in announced_in(cast("Any", self)).items():
            store.wakeups.publish(signal, *sorted(subjects))

    def _check_lease(self, fence: Fence, key: str) -> None:
        digest, *lease = fence
        holder = self.store.leases[digest]
        if holder != tuple(lease):
            self.store.checker.fail("S6", f"{key} was written under {fence}, and {holder} holds it")

    def _apply_runs(self) -> None:
        store, checker = self.store, self.store.checker
        by_pk = {run.pk: run for run in self._made}
        for (dag_id, event), pk in self._taken.items():
            if store.queues[dag_id][event] is None:
                # Checked again by the UPDATE, which waits for whoever is changing the row.
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


async def find_candidates(session: Transaction) -> list[str]:
    """As `triggerer.store.queries.runs`: DAGs for which an event waits."""
    store = session.store
    await store.chance.delay()
    return [dag_id for dag_id, dag in store.dags.items() if store.waiting(dag)]


async def lock_and_read(
    session: Transaction, dag_ids: Collection[str], *, bound: int
) -> list[WaitingRow]:
    """As `triggerer.store.queries.runs`."""
    await session.lock_dags(dag_ids)
    await session.store.chance.delay()
    rows: list[WaitingRow] = []
    for dag_id in dag_ids:
        dag = session.store.dags[dag_id]
        names = {session.store.asset_ids[one.name]: one for one in assets_of(dag.condition)}
        for asset, events in session.untaken(dag).items():
            one = names[asset]
            rows.append(
                WaitingRow(
                    dag_id,
                    condition_to_json(dag.condition),
                    dag.max_active_runs,
                    dag.events_per_run,
                    {},
                    session.store.active_runs(dag_id),
                    asset,
                    one.name,
                    one.uri,
                    None,
                    min(len(events), bound),
                )
            )
    return rows


async def database_now(session: Transaction) -> datetime:
    """The database's clock."""
    return session.store.now()


async def create_run(
    session: Transaction, dag_id: str, *, run_after: datetime, **_: Any
) -> CreatedRun:
    """As `triggerer.store.queries.runs`."""
    await session.store.chance.delay()
    run = session.make_run(dag_id)
    announce(cast("Any", session), Signal.RUNS_QUEUED, dag_id)
    return CreatedRun(run.pk, dag_id, str(run.pk), run_after)


async def take_all_events(session: Transaction, run: CreatedRun) -> int:
    """As `triggerer.store.queries.runs`."""
    dag = session.store.dags[run.dag_id]
    return _take(session, run, [one for events in session.untaken(dag).values() for one in events])


async def take_oldest_events(
    session: Transaction, run: CreatedRun, asset_ids: Sequence[int], *, each: int
) -> int:
    """As `triggerer.store.queries.runs`."""
    waiting = session.untaken(session.store.dags[run.dag_id])
    return _take(session, run, [one for at in asset_ids for one in waiting.get(at, [])[:each]])


def _take(session: Transaction, run: CreatedRun, events: Sequence[int]) -> int:
    for event in events:
        session.take(run.dag_id, event, run.pk)
    return len(events)
