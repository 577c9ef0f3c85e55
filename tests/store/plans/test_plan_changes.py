"""What `triggerer plan` says of changes of many kinds, asked on each database."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from tests.store.partitions import asset, emit_keys, partitioned
from tests.store.plans.test_plan import HEADER
from tests.store.scheduler.test_timed import now_of, renewed, timed
from tests.store.scheduling import end, set_columns
from tests.store.seeding import add_asset, add_dag, asset_json, emit, runs_of
from triggerer.dag_processing import parse_once
from triggerer.domain.schedules import OnTime, schedule_to_json
from triggerer.errors import UnknownDag
from triggerer.operations.planning import plan as module
from triggerer.operations.planning.plan import Change, DagPlan, FolderPlan, plan_folder
from triggerer.scheduler import Scheduler
from triggerer.store.dags.sync import sync_folder
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import AssetEvent
from triggerer.timetables import CronTriggerTimetable

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


async def plan(
    database: Database,
    folder: Path,
    files: dict[str, str],
    *,
    since: datetime | None = None,
    **options: Any,
) -> FolderPlan:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(HEADER + text)
    parsed = await parse_once(folder)
    return await plan_folder(database, parsed, since=since, **options)


def by_id(found: FolderPlan) -> dict[str, DagPlan]:
    return {one.dag_id: one for one in found.dags}


def changes(found: FolderPlan) -> dict[str, Change]:
    return {one.dag_id: one.change for one in found.dags}


async def on_a(database: Database, dag_id: str = "d", **columns: Any) -> None:
    await add_dag(database, dag_id, asset_json("a"), assets=[1], **columns)


@pytest.fixture
async def with_a(database: Database) -> Database:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    return database


async def test_of_a_cron_that_changes_the_runs_of_a_week_and_the_next_run_are_shown(
    database: Database, tmp_path: Path
) -> None:
    now = await now_of(database)
    # Neither schedule is due while the test runs.
    at = now + 12 * HOUR
    daily, twice = f"{at.minute} {at.hour} * * *", f"{at.minute} {at.hour},{now.hour} * * *"
    timetable = CronTriggerTimetable(daily, timezone="UTC")
    await timed(database, "d", OnTime(timetable), start_date=now - 30 * DAY)
    for cron, expected in ((daily, (Change.SAME, 7, 7)), (twice, (Change.CHANGED, 7, 14))):
        file = (
            "from datetime import datetime, timezone\n"
            f'with DAG("d", schedule="{cron}", start_date=datetime.fromisoformat("{now - 30 * DAY}")): pass\n'
        )
        found = await plan(database, tmp_path, {"d.py": file})
        (one,) = found.dags
        assert (found.events, found.since) == (0, found.until - 7 * DAY)
        assert one.before is not None
        assert one.after is not None
        assert (one.change, len(one.before.runs), len(one.after.runs)) == expected
        assert one.next_before == at.replace(second=0, microsecond=0)
        assert one.next_after is not None
        assert one.next_after <= one.next_before


async def test_an_asset_that_is_added_to_the_expression_is_waited_for(
    with_a: Database, tmp_path: Path
) -> None:
    await on_a(with_a)
    await emit(with_a, 1)
    found = await plan(with_a, tmp_path, {"d.py": 'with DAG("d", schedule=a & b): pass\n'})
    (one,) = found.dags
    assert (one.change, one.due_before, one.due_after, one.dropped) == (Change.CHANGED, 1, 0, 0)
    assert one.holds_after == ("no event of b is waiting",)
    assert one.before is not None
    assert one.after is not None
    assert (len(one.before.runs), one.after.runs, one.after.waiting) == (1, (), (1,))


async def test_a_dag_that_is_renamed_is_gone_and_another_is_new(
    with_a: Database, tmp_path: Path
) -> None:
    await on_a(with_a)
    await emit(with_a, 1, 2)
    found = by_id(await plan(with_a, tmp_path, {"d.py": 'with DAG("e", schedule=a): pass\n'}))
    assert (found["d"].change, found["d"].queued, found["d"].dropped) == (Change.GONE, 2, 2)
    assert (found["d"].due_before, found["d"].due_after) == (1, 0)
    # Earlier events are not queued for a new DAG.
    assert (found["e"].change, found["e"].queued, found["e"].due_after) == (Change.NEW, 0, 0)


async def test_a_dag_that_moves_to_another_file_stays_the_same(
    with_a: Database, tmp_path: Path
) -> None:
    await on_a(with_a)
    found = await plan(with_a, tmp_path, {"below/e.py": 'with DAG("d", schedule=a): pass\n'})
    assert changes(found) == {"d": Change.SAME}


async def test_a_dag_that_comes_back_has_its_former_runs_and_events(
    with_a: Database, tmp_path: Path
) -> None:
    """A DAG that comes back keeps its pause. `is_paused_upon_creation` applies only to a DAG that is new in the
    store."""
    for dag_id in ("d", "paused"):
        await on_a(with_a, dag_id, is_paused=dag_id == "paused")
    await emit(with_a, 1, 3)
    for dag_id in ("d", "paused"):
        await set_columns(with_a, dag_id, is_stale=True)
    files = {
        "d.py": 'with DAG("d", schedule=a, events_per_run=1, is_paused_upon_creation=True): pass\n',
        "p.py": 'with DAG("paused", schedule=a): pass\n',
    }
    found = by_id(await plan(with_a, tmp_path, files))
    back, paused = found["d"], found["paused"]
    assert (back.change, back.before, back.due_before) == (Change.NEW, None, 0)
    assert (back.queued, back.due_after) == (3, 3)
    assert (paused.change, paused.queued, paused.due_after) == (Change.NEW, 3, 0)
    assert paused.holds_after[0] == "it is paused"
    # A stale DAG that no file defines is not part of the plan.
    (tmp_path / "p.py").unlink()
    assert changes(await plan(with_a, tmp_path, files={})) == {"d": Change.NEW}


async def test_a_dag_that_leaves_a_file_with_a_broken_watcher_is_gone(
    with_a: Database, tmp_path: Path
) -> None:
    """Everything in the file but the broken watcher takes effect."""
    await on_a(with_a)
    text = """
from triggerer import AssetWatcher, BaseEventTrigger
class Broken(BaseEventTrigger):
    def serialize(self): raise RuntimeError("boom")
with DAG("e", schedule=Asset("x-test://c", name="c", watchers=[AssetWatcher("w", Broken())])): pass
"""
    found = await plan(with_a, tmp_path, {"d.py": text})
    assert changes(found) == {"d": Change.GONE, "e": Change.NEW}
    assert ["boom" in one.reason for one in found.errors] == [True]


async def test_a_dag_in_a_folder_that_cannot_be_read_is_kept(
    with_a: Database, tmp_path: Path
) -> None:
    await on_a(with_a)
    await set_columns(with_a, "d", path="below/d.py")
    # A dead link may have led to a folder.
    (tmp_path / "below").symlink_to(tmp_path / "nowhere")
    found = await plan(with_a, tmp_path, {})
    assert changes(found) == {"d": Change.KEPT}
    assert ["below" in one.file for one in found.errors] == [True]


async def test_of_two_files_that_contradict_the_one_that_is_in_force_is_right(
    with_a: Database, tmp_path: Path
) -> None:
    await on_a(with_a)
    files = {
        "a.py": 'with DAG("d", schedule=b): pass\nwith DAG("e", schedule=b): pass\n',
        "d.py": 'with DAG("d", schedule=a): pass\n',
    }
    found = await plan(with_a, tmp_path, files)
    assert changes(found) == {"d": Change.SAME}
    (error,) = found.errors
    assert (error.file, error.line) == ("a.py", 4)
    assert "also defined at d.py" in error.reason


async def test_a_new_file_does_not_take_a_dag_from_one_that_is_broken(
    with_a: Database, tmp_path: Path
) -> None:
    await on_a(with_a)
    files = {"a.py": 'with DAG("d", schedule=b): pass\n', "d.py": "this is no Python\n"}
    found = await plan(with_a, tmp_path, files)
    assert changes(found) == {"d": Change.KEPT}
    assert {error.file for error in found.errors} == {"a.py", "d.py"}


async def test_a_dag_that_is_nowhere_is_unknown(with_a: Database, tmp_path: Path) -> None:
    await on_a(with_a)
    with pytest.raises(UnknownDag):
        await plan(with_a, tmp_path, {}, dag="nope")
    assert changes(await plan(with_a, tmp_path, {}, dag="d")) == {"d": Change.GONE}


async def test_a_schedule_that_cannot_be_read_here_is_said_and_the_others_are_planned(
    with_a: Database, tmp_path: Path
) -> None:
    strange = {"timetable": {"type": "of-another-machine", "arguments": {}}}
    for dag_id in ("gone", "strange"):
        await add_dag(with_a, dag_id, strange)
    await on_a(with_a)
    files = {
        "s.py": 'with DAG("strange", schedule=a): pass\n',
        "d.py": 'with DAG("d", schedule=a): pass\n',
    }
    found = await plan(with_a, tmp_path, files)
    assert changes(found) == {
        "d": Change.SAME,
        "gone": Change.GONE,
        "strange": Change.CHANGED,
    }
    for dag_id in ("gone", "strange"):
        error = by_id(found)[dag_id].error
        assert error is not None
        assert "there is no timetable 'of-another-machine'" in error


@pytest.mark.parametrize("failing", ["definition_in", "replay", "look"])
async def test_an_error_of_a_timetable_is_reported_at_its_dag_with_the_change(
    with_a: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """A timetable of a user may raise any error."""
    for dag_id in ("changed", "gone"):
        await on_a(with_a, dag_id)
    await emit(with_a, 1, 2)

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(module, failing, fail)
    files = {
        "c.py": 'with DAG("changed", schedule=b): pass\n',
        "n.py": 'with DAG("new", schedule=b): pass\n',
    }
    found = await plan(with_a, tmp_path, files)
    assert changes(found) == {
        "changed": Change.CHANGED,
        "gone": Change.GONE,
        "new": Change.NEW,
    }
    for one in found.dags:
        is_asked = one.dag_id != "gone" or failing != "definition_in"
        assert (one.error == "ZeroDivisionError: boom") is is_asked
        assert one.queued == (0 if one.dag_id == "new" else 2)


@pytest.mark.parametrize(
    ("since", "limit", "expected"),
    [
        (None, 10_000, "a week ago"),
        (9 * DAY, 10_000, "then"),
        (None, 2, "with the first"),
        (9 * DAY, 2, "with the first"),
    ],
)
async def test_the_history_begins_a_week_ago_when_it_is_said_or_with_the_events_that_are_asked_for(
    with_a: Database, tmp_path: Path, since: timedelta | None, limit: int, expected: str
) -> None:
    await on_a(with_a)
    now = await now_of(with_a)
    events = await emit(with_a, 1, 3)
    for age, event in zip((3, 2, 1), events, strict=True):
        await set_age(with_a, event, now - age * HOUR)
    begin = None if since is None else now - since
    found = await plan(with_a, tmp_path, {}, since=begin, events=limit)
    begins = {
        "a week ago": found.until - 7 * DAY,
        "then": begin,
        "with the first": now - 2 * HOUR,
    }
    assert found.since == begins[expected]


async def test_a_history_older_than_a_week_begins_with_its_first_event(
    with_a: Database, tmp_path: Path
) -> None:
    (event,) = await emit(with_a, 1)
    began = await now_of(with_a) - 9 * DAY
    await set_age(with_a, event, began)
    assert (await plan(with_a, tmp_path, {})).since == began


async def set_age(database: Database, event: int, at: datetime) -> None:
    async with database.transaction() as session:
        await session.execute(update(AssetEvent).where(AssetEvent.id == event).values(timestamp=at))


TIMETABLES = """
from datetime import datetime, timedelta
from triggerer.timetables import (
    AssetAndTimeSchedule, AssetOrTimeSchedule, CronTriggerTimetable, PartitionedAssetTimetable,
)
hourly = CronTriggerTimetable("{minute} * * * *", timezone="UTC")
start = datetime.fromisoformat("{start}")
"""


DEFINITIONS = (
    "schedule=a",
    "schedule=a, events_per_run=1",
    "schedule=a, events_per_run=1, max_active_runs=2",
    "schedule=a, quiet_period=timedelta(hours=1)",
    "schedule=a, min_run_gap=timedelta(hours=1)",
    "schedule=a, depends_on_past=True",
    "schedule=a, end_date=start",
    "schedule=a & b",
    "schedule=a | b, events_per_run=1",
    "schedule=b",
    "schedule=None",
    "schedule=hourly, start_date=start",
    "schedule=hourly, start_date=start, catchup=True",
    "schedule=hourly, start_date=start, catchup=True, end_date=start + timedelta(hours=2)",
    "schedule=timedelta(hours=2), start_date=start, catchup=True",
    "schedule=AssetOrTimeSchedule(timetable=hourly, assets=a), start_date=start, catchup=True",
    "schedule=AssetAndTimeSchedule(timetable=hourly, assets=a), start_date=start, catchup=True",
    "schedule=AssetAndTimeSchedule(timetable=hourly, assets=a), start_date=start",
    "schedule=PartitionedAssetTimetable(assets=a)",
    "schedule=PartitionedAssetTimetable(assets=a), max_active_runs=1",
    "schedule=PartitionedAssetTimetable(assets=a & b)",
    "schedule=PartitionedAssetTimetable(assets=a), quiet_period=timedelta(hours=1)",
)


@pytest.mark.parametrize(
    "state",
    [{"is_paused": False}, {"is_paused": True}, {"is_stale": True}],
    ids=["active", "paused", "stale"],
)
@pytest.mark.parametrize("before", ["assets", "time", "partitions"])
async def test_the_runs_that_a_plan_calls_due_are_the_runs_that_the_scheduler_then_makes(
    with_a: Database, tmp_path: Path, before: str, state: dict[str, bool]
) -> None:
    now = await now_of(with_a)
    # No run becomes due while the test runs.
    start = now.replace(second=0, microsecond=0) - 5 * HOUR - HOUR / 2
    hourly = OnTime(CronTriggerTimetable(f"{start.minute} * * * *", timezone="UTC"))
    schedule = {
        "assets": asset_json("a"),
        "time": schedule_to_json(hourly),
        "partitions": partitioned(asset("a")),
    }[before]
    waits = [] if before == "time" else [1]
    dags = {f"d{number:02}": arguments for number, arguments in enumerate(DEFINITIONS)}
    for dag_id in dags:
        await add_dag(
            with_a,
            dag_id,
            schedule,
            assets=waits,
            start_date=start,
            catchup=True,
            max_active_runs=1,
        )
        await renewed(with_a, dag_id)
    # Let each DAG have one successful run, and more events after it.
    await emit_keys(with_a, ["x"])
    await Scheduler(with_a).run_once()
    for dag_id in dags:
        (first,) = await runs_of(with_a, dag_id)
        await end(with_a, first)
    await emit_keys(with_a, ["x", "y"])
    await emit_keys(with_a, ["y"])
    for dag_id in dags:
        await set_columns(with_a, dag_id, **state)

    lines = [f'with DAG("{dag_id}", {arguments}): pass' for dag_id, arguments in dags.items()]
    header = TIMETABLES.format(minute=start.minute, start=start)
    planned = by_id(await plan(with_a, tmp_path, {"d.py": "\n".join([header, *lines, ""])}))
    parsed = await parse_once(tmp_path)
    assert not parsed.errors
    async with with_a.transaction() as session:
        files = {file.path: file for file in parsed.files}
        await sync_folder(session, parsed.folder, files, now=now)
    await Scheduler(with_a, max_dagruns_to_create_per_loop=1_000).run_once()
    for dag_id, arguments in dags.items():
        one = planned[dag_id]
        made = len(await runs_of(with_a, dag_id)) - 1
        assert (one.error, one.due_after) == (None, made), arguments
        assert (one.change is Change.NEW) is ("is_stale" in state)
        assert (one.before is None) is ("is_stale" in state)
