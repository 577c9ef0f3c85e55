"""The changes that other DAG files would make, on each database."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, select

from tests.store.partitions import asset, emit_keys, partitioned
from tests.store.seeding import add_asset, add_dag, asset_json, emit
from triggerer.dag_processing import parse_once
from triggerer.operations.planning.plan import Change, DagPlan, FolderPlan, plan_folder
from triggerer.partitions import FixedKeyMapper, RollupMapper, SegmentWindow
from triggerer.scheduler.loop import Scheduler
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import DagRun, QueuedAssetEvent

HEADER = """
from triggerer import DAG, Asset
a, b = Asset("x-test://a", name="a"), Asset("x-test://b", name="b")
"""


async def _plan(database: Database, folder: Path, **files: str) -> FolderPlan:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(HEADER + text)
    parsed = await parse_once(folder)
    return await plan_folder(database, parsed)


def _by_id(plan: FolderPlan) -> dict[str, DagPlan]:
    return {one.dag_id: one for one in plan.dags}


async def _seed(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    await add_dag(database, "on_a", asset_json("a"), assets=[1])
    both = {"all": [asset_json("a"), asset_json("b")]}
    await add_dag(database, "both", both, assets=[1, 2], is_paused=True)
    for _ in range(3):
        await emit(database, 1)
        await Scheduler(database).run_once()
    await emit(database, 2)


async def test_the_same_files_change_nothing(database: Database, tmp_path: Path) -> None:
    await _seed(database)
    plan = await _plan(
        database,
        tmp_path,
        on_a='with DAG("on_a", schedule=a): pass\n',
        both='with DAG("both", schedule=a & b): pass\n',
    )
    assert plan.events == 4
    assert [(one.dag_id, one.change) for one in plan.dags] == [
        ("both", Change.SAME),
        ("on_a", Change.SAME),
    ]
    on_a = _by_id(plan)["on_a"]
    assert on_a.before == on_a.after
    assert on_a.before is not None
    # By the definition in force, each event had a run of its own.
    assert [run.asset_event_ids for run in on_a.before.runs] == [(1,), (2,), (3,)]
    both = _by_id(plan)["both"]
    assert both.after is not None
    assert [run.asset_event_ids for run in both.after.runs] == [(1, 2, 3, 4)]
    # The DAG is paused, so nothing is due although events wait.
    assert (both.queued, both.due_before, both.due_after) == (4, 0, 0)
    assert "it is paused" in both.holds_after


async def test_a_changed_a_new_and_a_gone_dag_are_told_apart(
    database: Database, tmp_path: Path
) -> None:
    await _seed(database)
    plan = _by_id(
        await _plan(
            database,
            tmp_path,
            on_a='with DAG("on_a", schedule=b): pass\n',
            new='with DAG("new", schedule=a | b): pass\n',
        )
    )
    assert {name: one.change for name, one in plan.items()} == {
        "on_a": Change.CHANGED,
        "both": Change.GONE,
        "new": Change.NEW,
    }
    on_a, new, gone = plan["on_a"], plan["new"], plan["both"]
    assert on_a.before is not None
    assert on_a.after is not None
    assert (len(on_a.before.runs), len(on_a.after.runs)) == (3, 1)
    assert new.before is None
    assert new.after is not None
    assert len(new.after.runs) == 4
    # The events are older than the new DAG, so they will not be queued for it.
    assert (new.queued, new.due_after) == (0, 0)
    assert (gone.after, gone.queued, gone.dropped) == (None, 4, 4)


async def test_events_queued_now_may_be_due_under_the_new_files(
    database: Database, tmp_path: Path
) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    both = {"all": [asset_json("a"), asset_json("b")]}
    await add_dag(database, "d", both, assets=[1, 2])
    await emit(database, 1, 3)
    plan = _by_id(
        await _plan(database, tmp_path, d='with DAG("d", schedule=a, events_per_run=1): pass\n')
    )["d"]
    assert (plan.queued, plan.due_before, plan.due_after, plan.dropped) == (3, 0, 3, 0)
    plan = _by_id(await _plan(database, tmp_path, d='with DAG("d", schedule=b): pass\n'))["d"]
    assert (plan.due_before, plan.due_after, plan.dropped) == (0, 0, 3)
    assert plan.holds_after == ("no event of b is waiting",)


async def test_a_dag_whose_new_file_is_broken_stays_as_it_is(
    database: Database, tmp_path: Path
) -> None:
    await _seed(database)
    plan = _by_id(await _plan(database, tmp_path, on_a="this is no Python\n"))
    assert plan["on_a"].change is Change.KEPT
    assert plan["on_a"].before == plan["on_a"].after
    assert plan["both"].change is Change.GONE


async def test_planning_changes_nothing(database: Database, tmp_path: Path) -> None:
    await _seed(database)

    async def rows() -> list[int | None]:
        async with database.reading() as session:
            waiting = QueuedAssetEvent.run_pk.is_(None)
            return [
                await session.scalar(select(func.count()).select_from(DagRun)),
                await session.scalar(select(func.count()).select_from(QueuedAssetEvent)),
                await session.scalar(
                    select(func.count()).select_from(QueuedAssetEvent).where(waiting)
                ),
            ]

    before = await rows()
    await _plan(database, tmp_path, on_a='with DAG("on_a", schedule=b): pass\n')
    assert await rows() == before


PARTITIONED = """
from triggerer.partitions import FixedKeyMapper, RollupMapper, SegmentWindow
from triggerer.timetables import PartitionedAssetTimetable

def regions(*names):
    mapper = RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=SegmentWindow(names))
    return PartitionedAssetTimetable(assets=a, default_partition_mapper=mapper)

"""


async def test_the_plan_of_a_partitioned_dag_names_its_due_keys_and_waiting_events(
    database: Database, tmp_path: Path
) -> None:
    await add_asset(database, 1, "a")
    wants = RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=SegmentWindow(["eu", "us"]))
    schedule = partitioned(asset("a"), default_partition_mapper=wants)
    for dag_id in ("fewer", "plain", "same"):
        await add_dag(database, dag_id, schedule, assets=[1])
    await add_dag(database, "keyed", asset_json("a"), assets=[1], max_active_runs=1)
    await emit_keys(database, ["eu"])
    await Scheduler(database).run_once()
    await emit_keys(database, ["eu", None])
    await Scheduler(database).run_once()
    plan = _by_id(
        await _plan(
            database,
            tmp_path,
            same=PARTITIONED + 'with DAG("same", schedule=regions("eu", "us")): pass\n',
            fewer=PARTITIONED + 'with DAG("fewer", schedule=regions("eu")): pass\n',
            plain='with DAG("plain", schedule=a): pass\n',
            keyed=PARTITIONED
            + 'with DAG("keyed", schedule=PartitionedAssetTimetable(assets=a)): pass\n',
        )
    )
    same, fewer, plain, keyed = (plan[one] for one in ("same", "fewer", "plain", "keyed"))
    assert (same.change, same.queued, same.due_before, same.due_after) == (Change.SAME, 2, 0, 0)
    assert same.after is not None
    assert (same.after.runs, same.after.waiting) == ((), (1, 2))
    assert (fewer.change, fewer.due_before, fewer.due_after) == (Change.CHANGED, 0, 1)
    assert fewer.after is not None
    assert [run.partition_key for run in fewer.after.runs] == ["all", "all"]
    assert (plain.queued, plain.due_before, plain.due_after, plain.dropped) == (2, 0, 1, 0)
    # The waiting events would be divided, and one of them has no key.
    assert (keyed.queued, keyed.due_before) == (2, 0)
    assert keyed.after is not None
    assert [run.partition_key for run in keyed.after.runs] == ["eu", "eu"]
