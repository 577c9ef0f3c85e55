"""`why-not` shows equal partition keys before and after the scheduler has divided the queued events."""

from datetime import timedelta

import pytest

from tests.store.partitions import DAY, HOURS, asset, daily, emit_keys, partitioned
from tests.store.scheduling import set_columns
from tests.store.seeding import add_asset, add_dag, runs_of
from triggerer.partitions import (
    FanOutMapper,
    MonthWindow,
    QuarterWindow,
    RollupMapper,
    StartOfDayMapper,
    StartOfQuarterMapper,
    WaitUntil,
)
from triggerer.scheduler import Scheduler
from triggerer.scheduler.explaining import WhyNot, why, why_not
from triggerer.scheduler.holds import HoldKind
from triggerer.store.database.transactions import Database
from triggerer.store.partitions.remapping import return_to_queue


async def _ask(database: Database, dag_id: str = "daily") -> WhyNot:
    async with database.reading() as session:
        return await why_not(session, dag_id)


@pytest.mark.parametrize("is_divided", [False, True])
async def test_why_not_names_the_waiting_keys_and_their_missing_events(
    database: Database, is_divided: bool
) -> None:
    await daily(database, is_paused=not is_divided)
    await emit_keys(database, [*HOURS[:21], "2026-03-11T00"])
    await Scheduler(database).run_once()
    found = await _ask(database)
    first, second = found.partitions
    assert (first.partition_key, first.due_at, first.runs) == (DAY, None, 0)
    (lack,) = first.lacks
    assert (lack.name, lack.missing, lack.deadline) == ("hours", tuple(HOURS[21:]), None)
    assert len(second.lacks[0].missing) == 23
    assert found.runs_due == 0
    assert HoldKind.PARTITION in {hold.kind for hold in found.holds}


@pytest.mark.parametrize("is_divided", [False, True])
async def test_a_key_that_is_due_and_held_by_the_cap_is_said_to_be_due(
    database: Database, is_divided: bool
) -> None:
    await daily(database, max_active_runs=1)
    await emit_keys(database, HOURS)
    await Scheduler(database).run_once()
    await emit_keys(database, HOURS[:1])
    if is_divided:
        await Scheduler(database).run_once()
    found = await _ask(database)
    (key,) = found.partitions
    assert (key.partition_key, key.runs, key.lacks) == (DAY, 1, ())
    assert key.due_at is not None
    # The first run is queued, and no executor is there for it.
    assert [hold.kind for hold in found.holds] == [HoldKind.WORKER, HoldKind.CAP]
    await set_columns(database, "daily", max_active_runs=2)
    assert (await _ask(database)).runs_due == 1


async def test_a_deadline_is_when_it_looks_again(database: Database) -> None:
    await daily(database, policy=WaitUntil(timedelta(days=36_500)))
    await emit_keys(database, HOURS[:1])
    await Scheduler(database).run_once()
    found = await _ask(database)
    (key,) = found.partitions
    (hold,) = found.holds
    assert key.due_at is not None
    assert key.due_at == hold.until == key.lacks[0].deadline


async def test_an_event_that_a_run_of_a_key_took_is_not_shown_as_waiting_for_it(
    database: Database,
) -> None:
    """A changed file maps an event again, after some of its keys have had their runs."""
    quarters = StartOfQuarterMapper(input_format="%Y-Q{quarter}")
    months = FanOutMapper(upstream_mapper=quarters, window=QuarterWindow())
    schedule = partitioned(asset("a"), default_partition_mapper=months)
    await add_asset(database, 1, "a")
    await add_dag(database, "monthly", schedule, assets=[1], max_active_runs=1)
    await emit_keys(database, ["2026-Q1"])
    assert await Scheduler(database).run_once() == 1
    async with database.transaction() as session:
        await return_to_queue(session, ["monthly"])
    await set_columns(database, "monthly", max_active_runs=10)
    found = await _ask(database, "monthly")
    assert [one.partition_key for one in found.partitions] == ["2026-02", "2026-03"]
    assert found.runs_due == await Scheduler(database).run_once() == 2


async def test_an_asset_that_is_missing_is_named(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    await add_dag(database, "join", partitioned([asset("a"), asset("b")]), assets=[1, 2])
    await emit_keys(database, ["k"])
    await Scheduler(database).run_once()
    (key,) = (await _ask(database, "join")).partitions
    assert [(one.name, one.missing) for one in key.lacks] == [("b", ())]


async def test_a_roll_up_whose_window_does_not_fit_is_shown_with_the_reason(
    database: Database,
) -> None:
    days = RollupMapper(upstream_mapper=StartOfDayMapper(), window=MonthWindow())
    await add_asset(database, 1, "a")
    await add_dag(
        database, "misfit", partitioned(asset("a"), default_partition_mapper=days), assets=[1]
    )
    await emit_keys(database, ["2026-03-10T05:00:00"])
    for _ in range(2):
        (key,) = (await _ask(database, "misfit")).partitions
        (lack,) = key.lacks
        assert (key.partition_key, key.due_at, lack.name) == (DAY, None, "a")
        assert lack.unreachable is not None
        assert "counts from the first of a month" in lack.unreachable
        assert await Scheduler(database).run_once() == 0


@pytest.mark.parametrize("key", [None, "yesterday"])
async def test_the_newest_event_that_is_for_no_run_is_named(
    database: Database, key: str | None
) -> None:
    await daily(database)
    (event,) = await emit_keys(database, [key])
    await Scheduler(database).run_once()
    reasons = [hold.reason for hold in (await _ask(database)).holds]
    assert any(f"hours, {event}, is for no run" in reason for reason in reasons), reasons
    await emit_keys(database, HOURS[:1])
    await Scheduler(database).run_once()
    reasons = [hold.reason for hold in (await _ask(database)).holds]
    assert not any("for no run" in reason for reason in reasons)


async def test_why_shows_the_events_of_a_keys_run(database: Database) -> None:
    await daily(database)
    events = await emit_keys(database, HOURS)
    await Scheduler(database).run_once()
    (run,) = await runs_of(database, "daily")
    async with database.reading() as session:
        found = await why(session, "daily", run.run_id)
    assert found.run.partition_key == DAY
    assert [event.id for event in found.events] == events
    assert found.expression == {"asset": "hours", "satisfied": True}
