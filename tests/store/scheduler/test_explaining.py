"""Why a DAG has no run, when it will have one, and why a run exists."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import update

from tests.store.scheduler.test_timed import FLIGHTS, HOUR, now_of, timed
from tests.store.scheduling import two_assets
from tests.store.seeding import FENCE, NOW, add_asset, add_stream, emit, runs_of
from triggerer.domain.schedules import OnBoth, OnTime
from triggerer.domain.timetables import DeltaDataIntervalTimetable
from triggerer.errors import DagError, PluginError, UnknownRun
from triggerer.scheduler import Scheduler
from triggerer.scheduler.explaining import next_runs, why, why_not
from triggerer.scheduler.holds import HoldKind
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import Stream, Trigger, Watcher
from triggerer.store.watchers.listing import streams_of_watchers


async def test_why_not_shows_the_decision_of_the_scheduler(database: Database) -> None:
    await two_assets(database)
    await emit(database, 1, 3)
    async with database.reading() as session:
        found = await why_not(session, "join")
    assert (found.runs_due, [hold.kind for hold in found.holds]) == (0, [HoldKind.ASSETS])
    assert found.holds[0].reason == "no event of weather is waiting"
    assert [one.asset_name for one in found.waiting] == ["flights"]
    await emit(database, 2)
    async with database.reading() as session:
        assert (await why_not(session, "join")).runs_due == 1
    assert await Scheduler(database).run_once() == 1
    async with database.reading() as session:
        assert (await why_not(session, "join")).runs_due == 0


async def test_why_not_names_the_watchers_of_its_assets_that_are_not_running(
    database: Database,
) -> None:
    await two_assets(database)
    await add_asset(database, 3, "other")
    await add_stream(database)
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest=FENCE.stream_digest)
        )
        await session.flush()
        states = [(1, "running"), (2, "failing"), (3, "failing")]
        for asset_id, state in states:
            session.add(
                Watcher(
                    asset_id=asset_id,
                    name="w",
                    trigger_id=1,
                    path="x.py",
                    state=state,
                    error=None if state == "running" else "ValueError: no",
                    updated_at=NOW,
                )
            )
    async with database.reading() as session:
        (told,) = (await why_not(session, "join")).watchers
    assert (told.asset_name, told.name, told.state) == ("weather", "w", "failing")
    assert told.error == "ValueError: no"
    async with database.transaction() as session:
        await session.execute(update(Stream).values(key="kafka w (group g)"))
    async with database.reading() as session:
        asked = {("weather", "w"), ("weather", "gone"), ("flights", "w")}
        names = await streams_of_watchers(session, asked)
    assert names == dict.fromkeys([("flights", "w"), ("weather", "w")], "kafka w (group g)")


async def test_all_that_holds_a_dag_is_shown_with_its_end(database: Database) -> None:
    await add_asset(database, 1, "flights")
    start = await now_of(database) - 2 * HOUR + timedelta(minutes=1)
    schedule = OnBoth(DeltaDataIntervalTimetable(2 * HOUR), FLIGHTS)
    await timed(database, "report", schedule, assets=(1,), start_date=start, is_paused=True)
    async with database.reading() as session:
        found = await why_not(session, "report")
    assert [(hold.kind, hold.until) for hold in found.holds] == [
        (HoldKind.PAUSED, None),
        (HoldKind.TIME, found.next_run and found.next_run.run_after),
        (HoldKind.ASSETS, None),
    ]


async def test_the_predicted_runs_are_the_runs_that_come(database: Database) -> None:
    start = await now_of(database) - HOUR - timedelta(minutes=1)
    schedule = OnTime(DeltaDataIntervalTimetable(HOUR))
    await timed(database, "report", schedule, start_date=start, catchup=True)
    async with database.reading() as session:
        found = await next_runs(session, "report", 3)
    assert [one.run_after for one in found] == [start + n * HOUR for n in (1, 2, 3)]
    assert [one.logical_date for one in found] == [start + n * HOUR for n in range(3)]
    assert await Scheduler(database).run_once() == 1
    async with database.reading() as session:
        assert (await next_runs(session, "report", 1))[0].run_after == start + 2 * HOUR


async def test_a_timetable_that_raises_is_named(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await timed(database, "report", OnTime(DeltaDataIntervalTimetable(HOUR)))

    def raise_(*_: object, **__: object) -> None:
        raise RuntimeError("the calendar is away")

    monkeypatch.setattr(DeltaDataIntervalTimetable, "next_dagrun_info", raise_)
    async with database.reading() as session:
        for ask in (partial(why_not, session, "report"), partial(next_runs, session, "report", 1)):
            with pytest.raises(PluginError, match=r"schedule of DAG 'report' .*calendar is away"):
                await ask()


async def test_a_run_shows_its_events_and_the_parts_of_the_expression_that_they_satisfied(
    database: Database,
) -> None:
    await add_asset(database, 3, "unused")
    await two_assets(database)
    async with database.transaction() as session:
        for asset in (1, 2, 1):
            await record_events(session, [NewAssetEvent(asset, {"offset": 7})])
    assert await Scheduler(database).run_once() == 1
    (run,) = await runs_of(database, "join")
    async with database.reading() as session:
        found = await why(session, "join", run.run_id)
        with pytest.raises(UnknownRun, match="no run 'nope'"):
            await why(session, "join", "nope")
        with pytest.raises(DagError, match="nope"):
            await why_not(session, "nope")
    assert [event.asset_name for event in found.events] == ["flights", "weather", "flights"]
    assert found.expression == {
        "all": [
            {"asset": "flights", "satisfied": True},
            {"asset": "weather", "satisfied": True},
        ],
        "satisfied": True,
    }
