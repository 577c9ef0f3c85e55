"""The queries of the list commands, on each database."""

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.explaining import working
from tests.store.seeding import NOW, add_asset, add_dag, add_stream, asset_json, emit
from triggerer.cli.assets import _ASSET_STATES, _EVENT_STATES
from triggerer.scheduler.loop import Scheduler
from triggerer.store.dags import listing as definitions
from triggerer.store.dags.pausing import set_paused
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events import listing as asset_events
from triggerer.store.listing.counts import count_all, count_asset, events_in_runs
from triggerer.store.runs import listing as dag_runs
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    DagFile,
    DagPartitionEvent,
    DagRun,
    Instance,
    QueuedAssetEvent,
    Stream,
    TaskRun,
    Trigger,
    Watcher,
    WatcherPosition,
)
from triggerer.store.watchers.listing import list_ailing_watchers, list_watchers


async def seed(database: Database) -> None:
    """Add a DAG on `a`, a paused DAG on `b`, a DAG on both, and a stale DAG.

    Then add 3 events of `a`, run the scheduler once, and add 1 event of `b`.
    """
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    await add_dag(database, "on_a", asset_json("a"), assets=[1])
    await add_dag(database, "on_b", asset_json("b"), assets=[2], is_paused=True)
    both = {"all": [asset_json("a"), asset_json("b")]}
    await add_dag(database, "on_both", both, assets=[1, 2])
    await add_dag(database, "gone", None, is_stale=True)
    await emit(database, 1, 3)
    await Scheduler(database).run_once()
    await emit(database, 2, 1)


async def test_assets_are_listed_by_name_with_their_own_last_event(database: Database) -> None:
    await seed(database)
    async with database.reading() as session:
        assets = await definitions.list_assets(session)
        newest = {
            name: (await asset_events.list_asset_events(session, asset=name))[0].timestamp
            for name in ("a", "b")
        }
        assert [row.name for row in assets] == ["a", "b"]
        assert {row.name: row.last_event_timestamp for row in assets} == newest
        assert newest["a"] != newest["b"]
        for asset in ("b", "x-test://b"):
            assert [row.id for row in await definitions.list_assets(session, asset=asset)] == [2]
        assert [row.name for row in await definitions.list_assets(session, dag="on_b")] == ["b"]


async def test_events_are_listed_newest_first_and_limited(database: Database) -> None:
    await seed(database)
    async with database.reading() as session:
        events = await asset_events.list_asset_events(session, limit=0)
        assert [row.asset_name for row in events] == ["b", "a", "a", "a"]
        assert [row.id for row in events] == sorted((row.id for row in events), reverse=True)
        assert len(await asset_events.list_asset_events(session, limit=2)) == 2
        assert await asset_events.list_asset_events(session, dag="on_a") == []
        # Keys that the store made itself are not shown.
        assert {row.idempotency_key for row in events} == {None}


async def test_events_are_queued_consumed_or_unused(database: Database) -> None:
    await seed(database)
    await add_asset(database, 3, "c")
    (unused,) = await emit(database, 3)
    async with database.reading() as session:

        async def ids(state: str, asset: str | None = None) -> list[int]:
            rows = await asset_events.list_asset_events(session, state=state, asset=asset)
            return sorted(row.id for row in rows)

        every = [row.id for row in await asset_events.list_asset_events(session)]
        of_a = [row.id for row in await asset_events.list_asset_events(session, asset="a")]
        # `on_a` has taken the events of `a`. They still count as queued, because `on_both` waits for them too.
        assert await ids("queued") == sorted(set(every) - {unused})
        assert await ids("consumed") == []
        assert await ids("unused") == [unused]
    await Scheduler(database).run_once()
    async with database.reading() as session:
        assert await ids("consumed") == sorted(of_a)
        # The event of `b` still waits for the paused `on_b`.
        assert await ids("queued") == sorted(set(every) - {unused, *of_a})
        assert await ids("queued", asset="a") == []
        assert set(asset_events.EVENT_STATES) == set(_EVENT_STATES)


async def test_events_in_a_state_are_found_however_far_back_they_lie(database: Database) -> None:
    """The two oldest of 30,000 events, and one in the middle, are unused. The ids have gaps."""
    await add_asset(database, 1, "a")
    await add_dag(database, "on_a", asset_json("a"), assets=[1])
    ids = [*range(1, 20_000), *range(150_000, 160_001)]
    unused = {1, 2, 12_345}
    async with database.transaction() as session:
        for start in range(0, len(ids), 1_000):
            some = ids[start : start + 1_000]
            await session.execute(
                insert(AssetEvent),
                [
                    {
                        "id": i,
                        "asset_id": 1,
                        "extra": {},
                        "timestamp": NOW,
                        "idempotency_key": f"{i}",
                    }
                    for i in some
                ],
            )
            await session.execute(
                insert(QueuedAssetEvent),
                [
                    {"dag_id": "on_a", "asset_event_id": i, "asset_id": 1, "run_pk": 1}
                    for i in some
                    if i not in unused
                ],
            )
    async with database.reading() as session:

        async def listed(state: str, limit: int) -> list[int]:
            found = await asset_events.list_asset_events(session, state=state, limit=limit)
            return [row.id for row in found]

        consumed = [i for i in reversed(ids) if i not in unused]
        assert await listed("unused", 0) == [12_345, 2, 1]
        assert await listed("unused", 2) == [12_345, 2]
        assert await listed("consumed", 10_500) == consumed[:10_500]
        assert await listed("consumed", 0) == consumed


Query = Callable[[AsyncSession], Awaitable[object]]


@pytest.mark.parametrize(
    "ask",
    [
        definitions.list_dags,
        lambda session: definitions.list_dags(session, dag="on_a"),
        definitions.list_assets,
        lambda session: dag_runs.list_runs(session, state="queued"),
        lambda session: dag_runs.list_runs(session, state="running", dag="on_a"),
        lambda session: dag_runs.list_runs(session, state="failed"),
        lambda session: dag_runs.list_runs(session, state="cancelled"),
        lambda session: dag_runs.list_runs(session, dag="on_a"),
        lambda session: dag_runs.list_runs(session, dag="on_a", with_events=True),
        lambda session: asset_events.list_asset_events(session, asset="a"),
        lambda session: asset_events.list_asset_events(session, dag="on_a"),
        lambda session: asset_events.list_asset_events(session, state="unused"),
    ],
)
async def test_a_page_is_read_from_an_index_and_not_from_all_of_history(
    sqlite: Database, ask: Query
) -> None:
    await seed(sqlite)
    asked: list[tuple[str, Any]] = []
    async with sqlite.reading() as session:
        connection = await session.connection()

        def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
            asked.append((statement, parameters))

        event.listen(connection.sync_connection, "before_cursor_execute", note)
        await ask(session)
        event.remove(connection.sync_connection, "before_cursor_execute", note)
        plans = [
            line[-1]
            for statement, parameters in asked
            for line in await connection.exec_driver_sql(
                f"EXPLAIN QUERY PLAN {statement}", parameters
            )
        ]
    assert plans
    # A scan may read waiting events and active runs, because their number does not grow with the history.
    present = ("ix_queued_asset_event_waiting", "ix_dag_run_active")
    for line in plans:
        if line.startswith("SCAN") and any(table in line for table in ("dag_run", "asset_event")):
            assert line.endswith(present), plans
        # This search would read every event that was ever queued for the DAG.
        assert line != "SEARCH queued_asset_event USING PRIMARY KEY (dag_id=?)", plans
    if not any("ix_dag_run_active" in line for line in plans):
        assert not any("FOR ORDER BY" in line for line in plans), plans


async def test_assets_are_declared_or_not(database: Database) -> None:
    await seed(database)
    async with database.transaction() as session:
        await session.execute(update(Asset).where(Asset.name == "a").values(declared_in="f.py:1"))
    async with database.reading() as session:
        found = {
            state: [row.name for row in await definitions.list_assets(session, state=state)]
            for state in _ASSET_STATES
        }
    assert found == {"declared": ["a"], "undeclared": ["b"]}
    assert set(definitions.ASSET_STATES) == set(_ASSET_STATES)


async def test_dags_show_their_waiting_events_and_their_newest_run(database: Database) -> None:
    await seed(database)
    async with database.reading() as session:
        dags = {row.dag_id: row for row in await definitions.list_dags(session)}
        assert list(dags) == ["gone", "on_a", "on_b", "on_both"]
        assert (dags["on_a"].queued_events, dags["on_a"].last_run_state) == (0, "queued")
        assert (dags["on_b"].queued_events, dags["on_b"].last_run_id) == (1, None)
        assert dags["on_both"].queued_events == 4

        async def ids(**filters: str) -> list[str]:
            return [row.dag_id for row in await definitions.list_dags(session, **filters)]

        assert await ids(state="active") == ["on_a", "on_both"]
        assert await ids(state="paused") == ["on_b"]
        assert await ids(state="stale") == ["gone"]
        assert await ids(asset="b") == ["on_b", "on_both"]


@pytest.mark.parametrize(
    ("queued", "keyed", "expected"),
    [
        (0, 0, (0, False)),
        (7, 0, (7, False)),
        (10, 0, (10, False)),
        (11, 0, (10, True)),
        (4, 3, (7, False)),
        (8, 5, (10, True)),
        # Each of these events waits for two keys.
        (0, 5, (5, False)),
        (0, 6, (6, True)),
    ],
)
async def test_waiting_events_of_a_dag_are_counted_up_to_a_bound(
    database: Database, monkeypatch: pytest.MonkeyPatch, queued: int, keyed: int, expected: Any
) -> None:
    monkeypatch.setattr(definitions, "MOST_COUNTED", 10)
    await _waiting(database, queued=queued, keyed=keyed)
    async with database.reading() as session:
        (dag,) = await definitions.list_dags(session, dag="d")
    assert (dag.queued_events, dag.is_counted_short) == expected


async def test_the_cost_of_the_list_of_dags_does_not_grow_with_waiting_events(
    database: Database,
) -> None:
    await _waiting(database, queued=20_000, keyed=10_000)
    if database.name.startswith("the PostgreSQL"):
        async with database.transaction() as session:
            await session.execute(text("ANALYZE"))
    async with database.reading() as session, working(await session.connection()) as work:
        (other, dag) = await definitions.list_dags(session)
    assert (dag.dag_id, dag.queued_events, dag.is_counted_short) == ("d", 1_000, True)
    assert (other.queued_events, other.is_counted_short) == (0, False)
    # Rows on PostgreSQL, hundreds of steps on SQLite.
    assert work.done < 10_000


async def _waiting(database: Database, *, queued: int, keyed: int) -> None:
    """Give DAG `d` `queued` waiting events, equally many events in a run, and `keyed` events that each wait for two
    keys."""
    await add_asset(database, 1, "a")
    for dag_id in ("another", "d"):
        await add_dag(database, dag_id, None)
    rows: list[dict[str, Any]] = [
        {"dag_id": "d", "asset_event_id": number, "asset_id": 1, "run_pk": None if number < queued else 7}
        for number in range(2 * queued)
    ]  # fmt: skip
    shares = [
        {"dag_id": "d", "partition_key": f"{number}-{key}", "asset_event_id": number, "asset_id": 1}
        for number in range(2 * queued, 2 * queued + keyed)
        for key in "xy"
    ]
    async with database.transaction() as session:
        if rows:
            await session.execute(insert(QueuedAssetEvent), rows)
        if shares:
            await session.execute(insert(DagPartitionEvent), shares)


async def test_runs_carry_their_events_only_where_asked(database: Database) -> None:
    await seed(database)
    await Scheduler(database).run_once()
    async with database.reading() as session:
        (of_both,) = await dag_runs.list_runs(session, dag="on_both", with_events=True)
        (of_a,) = await dag_runs.list_runs(session, asset="a", dag="on_a", with_events=True)
        assert len(of_both.asset_event_ids) == 4
        assert set(of_a.asset_event_ids) < set(of_both.asset_event_ids)
        assert [row.asset_event_ids for row in await dag_runs.list_runs(session)] == [[], []]
        by_b = await dag_runs.list_runs(session, asset="x-test://b")
        assert [row.dag_id for row in by_b] == ["on_both"]
        assert await dag_runs.list_runs(session, state="failed") == []
        found = await dag_runs.find_run(session, "on_a", of_a.run_id)
        assert found is not None
        assert await dag_runs.find_run(session, "on_b", of_a.run_id) is None


async def test_watchers_are_listed_with_stream_and_error(database: Database) -> None:
    await seed(database)
    await add_stream(database)
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="d", classpath="m.Kafka", kwargs={"t": 1}, stream_digest="stream")
        )
        await session.flush()
        for asset_id, state, error in ((1, "running", None), (2, "failing", "no such topic")):
            session.add(
                Watcher(
                    asset_id=asset_id,
                    name="w",
                    trigger_id=1,
                    path="f.py",
                    state=state,
                    error=error,
                    updated_at=NOW,
                )
            )
    async with database.reading() as session:
        both = await list_watchers(session)
        assert [(row.asset_name, row.state) for row in both] == [("a", "running"), ("b", "failing")]
        (failing,) = await list_watchers(session, state="failing")
        assert (failing.trigger, failing.stream, failing.error) == (
            "m.Kafka",
            "stream",
            "no such topic",
        )
        assert [row.asset_name for row in await list_watchers(session, dag="on_a")] == ["a"]


@pytest.mark.rule("18: commands and the page show how far a watcher is behind, and since when")
async def test_of_a_watcher_that_is_behind_in_a_log_its_places_are_shown(
    database: Database,
) -> None:
    await seed(database)
    await add_stream(database)
    later = NOW + timedelta(minutes=1)
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="d", classpath="m.Kafka", kwargs={}, stream_digest="stream")
        )
        await session.flush()
        for id_, name, state in (
            (1, "far", "failing"),
            (2, "near", "catching_up"),
            (3, "at", "running"),
        ):
            session.add(
                Watcher(
                    id=id_,
                    asset_id=1,
                    name=name,
                    trigger_id=1,
                    path="f.py",
                    state=state,
                    error="ValueError: 7" if state == "failing" else None,
                    traceback="in filter" if state == "failing" else None,
                    updated_at=NOW,
                )
            )
        await session.flush()
        for watcher_id, lane, number, head, since in (
            (1, '["t",0]', 5, 25, later),
            (1, '["t",1]', 0, 7, NOW),
            (2, '["t",0]', 5, None, NOW),
            # This watcher has caught up. Its row stays until the broker advances to its position.
            (3, '["t",0]', 25, 25, NOW),
        ):
            session.add(
                WatcherPosition(
                    watcher_id=watcher_id,
                    lane=lane,
                    stream_digest="stream",
                    position=["id", number],
                    since=since,
                    head=head,
                )
            )
    async with database.reading() as session:
        at, far, near = await list_watchers(session)
    assert (far.state, far.behind, far.behind_since) == ("failing", 27, NOW)
    assert [(one.lane, one.position, one.behind) for one in far.positions] == [
        ('["t",0]', ["id", 5], 20),
        ('["t",1]', ["id", 0], 7),
    ]
    assert (far.error, far.traceback) == ("ValueError: 7", "in filter")
    assert (near.state, near.behind, near.behind_since) == ("catching_up", None, NOW)
    assert (at.behind, at.behind_since, at.positions) == (0, None, [])


async def test_only_files_with_errors_are_broken(database: Database) -> None:
    error = {"file": "bad.py", "line": 3, "reason": "no"}
    async with database.transaction() as session:
        for path, errors in (("bad.py", [error]), ("good.py", [])):
            session.add(DagFile(path=path, parsed_at=NOW, parse_seconds=0.1, errors=errors))
    async with database.reading() as session:
        (broken,) = await definitions.list_broken_files(session)
        assert (broken.path, broken.errors) == ("bad.py", [error])


async def test_a_dag_is_listed_with_the_warnings_of_its_file(database: Database) -> None:
    warning = {"file": "d.py", "line": 3, "reason": "hardly meant"}
    await add_dag(database, "d", None)
    await add_dag(database, "e", None)
    async with database.transaction() as session:
        session.add(
            DagFile(path="d.py", parsed_at=NOW, parse_seconds=0.1, errors=[], warnings=[warning])
        )
    async with database.reading() as session:
        found = await definitions.list_dags(session)
    assert [one.file_warnings for one in found] == [[warning], []]


async def test_a_dag_that_is_gone_from_its_file_has_no_next_run(database: Database) -> None:
    await add_dag(database, "there", None, next_run_after=NOW)
    await add_dag(database, "gone", None, next_run_after=NOW, is_stale=True)
    async with database.reading() as session:
        found = await definitions.list_dags(session)
    assert [(one.dag_id, one.next_run_after) for one in found] == [("gone", None), ("there", NOW)]


async def test_tasks_are_listed_in_the_order_in_which_they_began(database: Database) -> None:
    await seed(database)
    async with database.transaction() as session:
        run = await _first_run(session, "on_a")
        for task_id, started in (("z", NOW), ("a", NOW.replace(hour=1)), ("never", None)):
            session.add(
                TaskRun(run_pk=run.id, task_id=task_id, state="success", started_at=started)
            )
    async with database.reading() as session:
        tasks = await dag_runs.list_task_runs(session, "on_a", run.run_id)
        assert [row.task_id for row in tasks] == ["z", "a", "never"]


async def test_counts_say_where_each_event_is(database: Database) -> None:
    await seed(database)
    async with database.transaction() as session:
        run = await _first_run(session, "on_a")
        run.state = "success"
        for task_id, started in (("t", NOW), ("never", None)):
            session.add(
                TaskRun(run_pk=run.id, task_id=task_id, state="success", started_at=started)
            )
    async with database.reading() as session:
        counts = await count_all(session)
        assert counts.tasks == 1
        assert counts.events == {"a": 3, "b": 1}
        assert counts.waiting == {("on_both", "a"): 3, ("on_both", "b"): 1, ("on_b", "b"): 1}
        assert {dag: state.value for dag, state in counts.runs} == {"on_a": "success"}
        of_a = await count_asset(session, asset="a", dag_id="on_a")
        assert (of_a.events, of_a.different, of_a.in_successful_runs, of_a.waiting) == (3, 3, 3, 0)
        held = await count_asset(session, asset="a", dag_id="on_both")
        assert (held.in_successful_runs, held.waiting) == (0, 3)
        assert len(await events_in_runs(session, dag_id="on_a")) == 3


async def test_unpausing_wakes_the_scheduler(database: Database) -> None:
    await seed(database)
    with database.wakeups.subscribe(Signal.DAGS_CHANGED) as woken:
        async with database.transaction() as session:
            assert await set_paused(session, "on_b", paused=False)
        assert woken.take_nowait() == {Signal.DAGS_CHANGED: {"on_b"}}
        async with database.transaction() as session:
            assert not await set_paused(session, "nobody", paused=True)
        assert woken.take_nowait() == {}


async def _first_run(session: AsyncSession, dag_id: str) -> DagRun:
    (view,) = await dag_runs.list_runs(session, dag=dag_id)
    run_pk = await dag_runs.find_run(session, dag_id, view.run_id)
    run = await session.get(DagRun, run_pk)
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("heard_s_ago", "state", "reason"),
    [
        (0, "running", None),
        (
            36,
            "running",
            r"its owner far:1:a was last heard from (\d+) s ago; its lease ends in (\d+) s, and then",
        ),
        (61, "waiting", r"no instance hosts it: its owner far:1:a was last heard from (\d+) s ago"),
    ],
)
async def test_a_watcher_whose_owner_is_silent_says_so_as_soon_as_a_heartbeat_is_missed(
    database: Database, heard_s_ago: int, state: str, reason: str | None
) -> None:
    await seed(database)
    await add_stream(database)
    async with database.transaction() as session:
        heard = await database_now(session) - timedelta(seconds=heard_s_ago)
        ends = heard + timedelta(seconds=60)
        owner = "far:1:a"
        session.add(
            Instance(
                id=owner, kind="triggerer", started_at=NOW, heartbeat_at=heard, expires_at=ends
            )
        )
        await session.execute(update(Stream).values(owner=owner, expires_at=ends))
        session.add(
            Trigger(id=1, digest="d", classpath="m.Kafka", kwargs={}, stream_digest="stream")
        )
        await session.flush()
        values = {"path": "f.py", "state": "running", "owner": owner, "updated_at": NOW}
        session.add(Watcher(asset_id=1, name="w", trigger_id=1, **values))
    async with database.reading() as session:
        (found,) = await list_watchers(session)
        (same,) = await list_watchers(session, state=state)
        ailing = await list_ailing_watchers(session, "on_a", limit=5)
    assert (found.state, found.owner_seen_at, found.lease_ends_at) == (state, heard, ends)
    assert same.state == state
    assert [one.reason for one in ailing] == ([] if reason is None else [found.reason])
    if reason is None:
        assert found.reason is None
    else:
        seconds = re.match(reason, found.reason or "")
        assert seconds is not None, found.reason
        # A second or more may have passed since the heartbeat was stored.
        assert heard_s_ago <= int(seconds[1]) <= heard_s_ago + 20
        if state == "running":
            assert 59 <= int(seconds[1]) + int(seconds[2]) <= 61
