"""What `Database.perform` promises about scripts, on each database and for each way to perform a script."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from sqlalchemy import text

from tests.services.databases.postgres import PostgresServer
from tests.store.seeding import add_asset, add_dag, asset_json, emit, runs_of
from triggerer.domain.runs import RunType
from triggerer.errors import Conflict, OutcomeUnknown, RowRefused, StoreError, StoreUnavailable
from triggerer.scheduler import Scheduler
from triggerer.store.database.clock import Now
from triggerer.store.database.opening import open_database
from triggerer.store.database.postgres.runner import PostgresRunner
from triggerer.store.database.script import (
    Announcement,
    DatabaseNow,
    Row,
    Script,
    database_instant,
    perform,
)
from triggerer.store.database.statement import (
    ParameterRows,
    Statement,
    in_list,
    instant_from,
    parameter_rows,
)
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.listening import listen
from triggerer.store.database.wakeups.signals import Announced, Signal
from triggerer.store.runs.creation.create_run import create_run
from triggerer.store.runs.creation.create_run_step import CreatedRun, EventSelection

_ADD = Statement("INSERT INTO asset_alias (name) VALUES ({name})")
_NAMES = Statement("SELECT name FROM asset_alias ORDER BY name")


def _add(*names: str) -> Script[list[str]]:
    for name in names:
        yield _ADD(name=name)
    yield Announcement(Signal.DAGS_CHANGED, names)
    rows = yield _NAMES()
    return [name for (name,) in rows]


class _Calls:
    """A step that calls `act`: on SQLite in the connection's thread, on PostgreSQL in the event loop."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        self.act()
        return []

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        self.act()
        return "SELECT 1", ()


async def _names(database: Database) -> list[str]:
    async with database.reading() as session:
        return list(await session.scalars(text("SELECT name FROM asset_alias ORDER BY name")))


async def test_a_script_returns_commits_and_wakes(database: Database) -> None:
    woken = database.wakeups.subscribe(Signal.DAGS_CHANGED)
    assert await database.perform(_add("b", "a")) == ["a", "b"]
    assert await _names(database) == ["a", "b"]
    assert woken.take_nowait() == {Signal.DAGS_CHANGED: {"a", "b"}}


async def test_a_script_within_a_session_shares_its_transaction(database: Database) -> None:
    woken = database.wakeups.subscribe(Signal.DAGS_CHANGED)

    async def fails() -> None:
        async with database.transaction() as session:
            await session.execute(text("INSERT INTO asset_alias (name) VALUES ('before')"))
            assert await perform(session, _add("a")) == ["a", "before"]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    assert await _names(database) == []
    assert woken.take_nowait() == {}
    async with database.transaction() as session:
        await perform(session, _add("a"))
    assert await _names(database) == ["a"]
    assert woken.take_nowait() == {Signal.DAGS_CHANGED: {"a"}}


async def test_an_error_of_a_script_or_a_statement_undoes_the_transaction(
    database: Database,
) -> None:
    def raises() -> Script[None]:
        yield from _add("a")
        raise Conflict("the script's own")

    woken = database.wakeups.subscribe(Signal.DAGS_CHANGED)
    with pytest.raises(Conflict, match="own"):
        await database.perform(raises())
    with pytest.raises(Conflict):
        await database.perform(_add("a", "a"))
    assert await _names(database) == []
    assert woken.take_nowait() == {}
    assert await database.perform(_add("a")) == ["a"]


async def test_a_script_that_fails_is_closed(database: Database) -> None:
    ended: list[str] = []

    def tidies_up() -> Script[None]:
        try:
            yield from _add("a", "a")
        finally:
            ended.append("closed")

    with pytest.raises(Conflict):
        await database.perform(tidies_up())
    assert ended == ["closed"]


async def test_a_cancelled_script_is_written_whole_or_not_at_all(database: Database) -> None:
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        if database.path is None:
            scope.cancel()
            return
        done = threading.Event()
        loop.call_soon_threadsafe(scope.cancel)
        loop.call_soon_threadsafe(done.set)
        assert done.wait(10)

    def cancelled_meanwhile() -> Script[None]:
        yield _ADD(name="a")
        yield _Calls(cancel)
        yield _ADD(name="b")

    returned = False
    with anyio.CancelScope() as scope:
        await database.perform(cancelled_meanwhile())
        returned = True
        await anyio.lowlevel.checkpoint()
        pytest.fail("the cancellation was forgotten")
    # On SQLite the thread finishes its script. On PostgreSQL the cancellation stops the statement.
    assert returned is (database.path is not None)
    assert await _names(database) == (["a", "b"] if returned else [])
    assert "z" in await database.perform(_add("z"))


async def test_a_task_that_asyncio_cancels_is_cancelled_once_its_script_has_ended(
    sqlite: Database,
) -> None:
    """A cancel scope repeats its cancellation. `Task.cancel` does not, so `perform` must not swallow it."""
    has_begun, go_on = threading.Event(), threading.Event()

    def slow() -> Script[None]:
        yield _Calls(has_begun.set)
        yield _ADD(name="a")
        yield _Calls(lambda: go_on.wait(30))

    task = asyncio.ensure_future(sqlite.perform(slow()))
    await anyio.to_thread.run_sync(has_begun.wait)
    task.cancel()
    await anyio.sleep(0.01)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _names(sqlite) == ["a"]


async def test_a_cancellation_during_the_commit_does_not_undo_it(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = postgres._runner
    assert isinstance(runner, PostgresRunner)
    commit = runner._commit

    async def cancelled_meanwhile(connection: Any, announced: Announced) -> None:
        scope.cancel()
        await commit(connection, announced)

    monkeypatch.setattr(runner, "_commit", cancelled_meanwhile)
    returned = False
    with anyio.CancelScope() as scope:
        await postgres.perform(_add("a"))
        returned = True
    assert returned
    assert await _names(postgres) == ["a"]


class _NeverCommits:
    """A connection whose server does not answer to COMMIT."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, statement: str) -> None:
        if "COMMIT" in statement:
            await anyio.sleep_forever()
        await self._connection.execute(statement)


async def test_a_commit_that_outlives_its_deadline_is_an_unknown_outcome(
    store_url: str, database: Database
) -> None:
    """Afterwards, no lock, open transaction or stuck connection hinders the next script."""
    go_on = threading.Event()

    def slow() -> Script[None]:
        yield _ADD(name="slow")
        yield _Calls(lambda: go_on.wait(30))

    quick = timedelta(seconds=0.2)
    async with open_database(store_url, commit_timeout=quick) as impatient:
        if isinstance(impatient._runner, PostgresRunner):
            await impatient.perform(_add("first"))
            impatient._runner._idle = [_NeverCommits(impatient._runner._idle.pop())]
            go_on.set()
        with pytest.raises(OutcomeUnknown, match="did not confirm"), anyio.fail_after(10):
            await impatient.perform(slow())
        go_on.set()
        with anyio.fail_after(10):
            assert "kept" in await impatient.perform(_add("kept"))


async def test_a_script_that_continues_after_its_deadline_does_not_disturb_the_unknown_outcome(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, has_gone_on = threading.Event(), threading.Event()

    def slow() -> Script[None]:
        yield Announcement(Signal.RUNS_QUEUED, ("d",))
        yield Announcement(Signal.RUNS_ENDED, ("d",))
        yield _Calls(lambda: go_on.wait(30))
        yield Announcement(Signal.DAGS_CHANGED, ("d",))
        yield _Calls(has_gone_on.set)

    async with open_database(sqlite_url, commit_timeout=timedelta(seconds=0.2)) as impatient:

        def publish(signal: Signal, *subjects: str) -> None:
            """Let the script announce more while its announcements are published."""
            go_on.set()
            has_gone_on.wait(30)

        monkeypatch.setattr(impatient.wakeups, "publish", publish)
        with pytest.raises(OutcomeUnknown, match="did not confirm"):
            await impatient.perform(slow())
        go_on.set()


async def test_a_sqlite_connection_that_cannot_roll_back_is_replaced(sqlite: Database) -> None:
    await sqlite.perform(_add("first"))

    class Breaks:
        """A step that ends the transaction and closes the connection, so that the rollback fails."""

        def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
            connection.execute("COMMIT")
            connection.close()
            return []

        def on_postgres(self) -> tuple[str, Sequence[Any]]:
            raise NotImplementedError

    def breaks() -> Script[None]:
        yield Breaks()
        yield _ADD(name="never")

    with pytest.raises(StoreError):
        await sqlite.perform(breaks())
    assert await sqlite.perform(_add("kept")) == ["first", "kept"]


async def test_a_begin_that_was_cancelled_on_its_way_is_undone(postgres: Database) -> None:
    """If BEGIN were not undone, the next single statement would join the transaction and never be committed."""
    runner = postgres._runner
    assert isinstance(runner, PostgresRunner)
    loop = asyncio.get_running_loop()

    class Cancelled:
        """A connection that cancels its user after BEGIN was sent and before the server answers."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        async def execute(self, statement: str) -> None:
            if statement == "BEGIN":
                loop.call_soon(scope.cancel)
            await self._connection.execute(statement)

    for number in range(10):
        await postgres.perform_step(_NAMES())
        runner._idle.append(Cancelled(runner._idle.pop()))
        with anyio.CancelScope() as scope:
            await postgres.perform(_add("never"))
        assert scope.cancelled_caught
        await postgres.perform_step(_ADD(name=f"kept {number}"))
        # This query uses another connection, which sees only committed rows.
        assert await _names(postgres) == [f"kept {one}" for one in range(number + 1)]


async def test_a_connection_whose_server_was_restarted_is_replaced(
    postgres: Database, postgres_server: PostgresServer
) -> None:
    await postgres.perform(_add("a"))
    await anyio.to_thread.run_sync(postgres_server.stop)
    with pytest.raises(StoreUnavailable):
        await postgres.perform(_add("b"))
    await anyio.to_thread.run_sync(postgres_server.start)
    assert await postgres.perform(_add("c")) == ["a", "c"]


async def test_an_announcement_may_hold_any_name(postgres: Database, postgres_url: str) -> None:
    """The name becomes a literal in the SQL of the commit, so it must be quoted."""
    awkward = """it's "quoted" \\ and \x01 odd; COMMIT"""

    def announces() -> Script[None]:
        yield Announcement(Signal.DAGS_CHANGED, (awkward,))

    async with open_database(postgres_url) as other, anyio.create_task_group() as tasks:
        await tasks.start(listen, other)
        heard = other.wakeups.subscribe(Signal.DAGS_CHANGED)
        await postgres.perform(announces())
        with anyio.fail_after(10):
            assert await heard.wait() == {Signal.DAGS_CHANGED: {awkward}}
        tasks.cancel_scope.cancel()


async def test_scripts_on_postgresql_do_not_wait_for_one_another(postgres: Database) -> None:
    entered = 0
    all_in = anyio.Event()

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as together:

        def meets() -> Script[None]:
            nonlocal entered
            yield DatabaseNow()
            entered += 1
            if entered == 4:
                all_in.set()
            while not all_in.is_set():
                yield DatabaseNow()

        for _ in range(4):
            together.start_soon(postgres.perform, meets())
        tasks.cancel_scope.deadline = anyio.current_time() + 20
    assert entered == 4


async def test_the_clock_is_the_databases(store_url: str) -> None:
    fixed = datetime(2026, 1, 1, tzinfo=UTC)
    async with open_database(store_url, now=lambda: fixed) as database:
        now = await database.perform(database_instant())
        async with database.transaction() as session:
            same = await perform(session, database_instant())
        if database.path is None:
            assert now < same < now + timedelta(seconds=60)
            assert now.utcoffset() == timedelta(0)
        else:
            assert now == same == fixed


async def test_values_are_given_alike_on_both_databases(database: Database) -> None:
    given = Statement(
        "SELECT n, at FROM {GIVEN} AS given WHERE n {IN_NUMBERS} ORDER BY n",
        GIVEN=parameter_rows(n="bigint", at="timestamptz"),
        IN_NUMBERS=in_list("numbers", "bigint"),
    )
    at = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    def asks() -> Script[list[Row]]:
        rows = yield given(rows=ParameterRows([(1, at), (2, None), (3, at)]), numbers=[1, 2, 7])
        return [tuple(row) for row in rows]

    (one, two) = await database.perform(asks())
    assert (one[0], instant_from(one[1])) == (1, at)
    assert two == (2, None)


@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
async def test_the_first_and_the_last_instant_come_back(database: Database, at: datetime) -> None:
    # asyncpg turns these two instants into PostgreSQL's infinities.
    given = Statement("SELECT {AT}", AT=("{at}", "{at}::timestamptz"))

    def asks() -> Script[list[Row]]:
        return [tuple(row) for row in (yield given(at=at))]

    ((found,),) = await database.perform(asks())
    assert instant_from(found) == at


@pytest.mark.parametrize("micros", [0, 7, 123456])
@pytest.mark.parametrize(
    ("rows", "numbers", "found"),
    [(1, [1], 1), (1, [2], 0), (1, [1, 2], 1), (2, [1], 1), (1, [], 0)],
)
async def test_one_value_or_row_is_given_as_many_are(
    database: Database, rows: int, numbers: list[int], found: int, micros: int
) -> None:
    """On SQLite, a statement with one value or one row has SQL of its own."""
    given = Statement(
        "SELECT n, at, word, wrong FROM {GIVEN} AS given WHERE n {IN_NUMBERS} AND word = {word}",
        GIVEN=parameter_rows(n="bigint", at="timestamptz", word="text", wrong="bool"),
        IN_NUMBERS=in_list("numbers", "bigint"),
    )
    at = datetime(2026, 1, 1, 12, 0, 5, micros, tzinfo=timezone(timedelta(hours=2)))
    words = [(number, at, "é\"'", False) for number in range(1, rows + 1)]

    def asks() -> Script[list[Row]]:
        return (yield given(rows=ParameterRows(words), numbers=numbers, word="é\"'"))

    answer = [
        (n, instant_from(at), word, bool(no)) for n, at, word, no in await database.perform(asks())
    ]
    assert answer == words[:found]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("value", [2**64, "\ud800"], ids=["a number", "a text"])
async def test_a_row_that_no_database_takes_is_refused(
    sqlite: Database, value: object, rows: int
) -> None:
    given = Statement("SELECT v FROM {GIVEN} AS given", GIVEN=parameter_rows(v="text"))

    def asks() -> Script[list[Row]]:
        return (yield given(rows=ParameterRows([(value,)] * rows)))

    with pytest.raises(RowRefused, match="cannot be stored"):
        await sqlite.perform(asks())


async def test_a_run_is_not_older_than_an_event_that_it_takes(postgres: Database) -> None:
    """Events are committed continually while runs are made."""
    await add_asset(postgres, 1, "flights")
    await add_dag(postgres, "report", asset_json("flights"), assets=[1], max_active_runs=10_000)
    scheduler = Scheduler(postgres)

    async def go_on_emitting() -> None:
        for _ in range(150):
            await emit(postgres, 1)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go_on_emitting)
        while True:
            await scheduler.run_once()
    async with postgres.reading() as session:
        younger = await session.scalar(
            text(
                "SELECT count(*) FROM queued_asset_event q"
                " JOIN asset_event e ON e.id = q.asset_event_id JOIN dag_run r ON r.id = q.run_pk"
                " WHERE e.timestamp > r.run_after"
            )
        )
        taken = text("SELECT count(*) FROM queued_asset_event WHERE run_pk IS NOT NULL")
        assert await session.scalar(taken)
    assert younger == 0


async def test_a_run_that_takes_events_is_not_earlier_than_the_present_instant(
    database: Database,
) -> None:
    await add_asset(database, 1, "orders")
    await add_dag(database, "report", asset_json("orders"), assets=[1])
    await emit(database, 1)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)

    def create(selection: EventSelection | None) -> Script[CreatedRun]:
        return create_run(
            "report",
            run_type=RunType.ASSET_TRIGGERED,
            params={},
            run_after=long_ago,
            selection=selection,
        )

    before = await database.perform(database_instant())
    made = await database.perform(create(EventSelection()))
    assert made.run_after >= before
    assert (await database.perform(create(None))).run_after == long_ago


async def test_a_run_id_that_is_taken_is_followed_by_the_next_instants(database: Database) -> None:
    await add_dag(database, "report", None)
    at = datetime(2026, 1, 1, tzinfo=UTC)

    def once() -> Script[CreatedRun]:
        return create_run("report", run_type=RunType.MANUAL, params={"a": 1}, run_after=at)

    def twice() -> Script[list[CreatedRun]]:
        first = yield from once()
        return [first, (yield from once())]

    runs = await database.perform(twice())
    assert [run.run_id for run in runs] == [
        "manual__2026-01-01T00:00:00.000000+00:00",
        "manual__2026-01-01T00:00:00.000001+00:00",
    ]
    stored = await runs_of(database, "report")
    assert [(run.id, run.run_id, run.run_after) for run in stored] == [
        (run.pk, run.run_id, run.run_after) for run in runs
    ]
    assert stored[0].params == {"a": 1}
