"""`assets delete` and `dags delete` delete undeclared assets and stale DAGs, and nothing else."""

from pathlib import Path

import pytest
from sqlalchemy import update

from tests.actors import TESTER
from tests.store.cleaning import count
from tests.store.dags.test_dag_sync import rows
from tests.store.partitions import asset as partitioned_asset
from tests.store.partitions import emit_keys, partitioned
from tests.store.scheduling import end
from tests.store.seeding import (
    NOW,
    add_alias,
    add_asset,
    add_dag,
    asset_json,
    count_events,
    emit,
    events_in,
    queue_of,
    runs_of,
)
from triggerer.domain.run_logs import log_path
from triggerer.errors import MoveRefused, UnknownAsset, UnknownDag
from triggerer.operations import deleting
from triggerer.operations.deleting import delete_asset, delete_dag
from triggerer.scheduler import Scheduler
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import (
    Asset,
    AssetAliasMember,
    Backfill,
    BackfillKey,
    Base,
    Dag,
    DagPartition,
    DagPartitionEvent,
    DagPartitionPart,
    DagRun,
    DagScheduleAlias,
    DagScheduleAsset,
    ParkedBody,
    ParkedMessage,
    QueuedAssetEvent,
    Stream,
    TaskRun,
    Trigger,
    Watcher,
    WatcherBookmark,
)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete 3 events or 2 runs at a time, so that a few rows take several steps."""
    monkeypatch.setattr(deleting, "_EVENTS", 3)
    monkeypatch.setattr(deleting, "_RUNS", 2)


async def _stale(database: Database, dag_id: str) -> None:
    async with database.transaction() as session:
        await session.execute(update(Dag).where(Dag.dag_id == dag_id).values(is_stale=True))


async def test_an_undeclared_asset_goes_with_its_events_and_nothing_else_does(
    database: Database,
) -> None:
    await add_asset(database, 1, "gone")
    await add_asset(database, 2, "stays")
    await add_alias(database, 5, "alias")
    async with database.transaction() as session:
        session.add(AssetAliasMember(alias_id=5, asset_id=1))
        session.add(Watcher(id=1, asset_id=1, name="w", trigger_id=None, path="d", updated_at=NOW))
        await session.flush()
        session.add(WatcherBookmark(watcher_id=1, classpath="m.T", change="c", value="1"))
    await emit(database, 1, 7)
    (kept,) = await emit(database, 2)
    deleted = await delete_asset(database, TESTER, "x-test://gone")
    assert (deleted.asset_name, deleted.asset_events, deleted.queued_events) == ("gone", 7, 0)
    assert [row.id for row in await events_in(database)] == [kept]
    assert [row.name for row in await rows(database, Asset)] == ["stays"]
    assert await count(database, AssetAliasMember) == await count(database, Watcher) == 0
    assert await count(database, WatcherBookmark) == 0


async def test_an_asset_that_is_not_there_is_unknown(database: Database) -> None:
    with pytest.raises(UnknownAsset, match="no asset 'nope'"):
        await delete_asset(database, TESTER, "nope")


async def test_the_deletion_of_an_asset_in_use_is_refused_and_names_its_user(
    database: Database,
) -> None:
    await add_asset(database, 1, "a")
    await emit(database, 1)

    async def refused() -> str:
        with pytest.raises(MoveRefused) as raised:
            await delete_asset(database, TESTER, "a", with_queued=True)
        assert raised.value.hint
        assert await count_events(database) == 1
        return raised.value.message

    async with database.transaction() as session:
        await session.execute(update(Asset).values(declared_in="a.py"))
    assert await refused() == "the asset 'a' is declared in a.py"
    async with database.transaction() as session:
        await session.execute(update(Asset).values(declared_in=None))
    await add_dag(database, "d", asset_json("a"), assets=[1])
    assert await refused() == "the DAG 'd' waits for the asset 'a'"
    await _stale(database, "d")
    async with database.transaction() as session:
        session.add(Stream(digest="s", key="s"))
        await session.flush()
        session.add(Trigger(id=1, digest="t", classpath="m.T", kwargs={}, stream_digest="s"))
        await session.flush()
        session.add(Watcher(id=1, asset_id=1, name="w", trigger_id=1, path="d", updated_at=NOW))
    assert await refused() == "the watcher 'w' of the asset 'a' still runs"
    async with database.transaction() as session:
        await session.execute(update(Watcher).values(trigger_id=None))
        session.add(
            ParkedBody(id=1, stream_digest="s", idempotency_key="k", data=b"x", size_bytes=1)
        )
        await session.flush()
        session.add(
            ParkedMessage(
                watcher_id=1, body_id=1, lane="0", idempotency_key="k", state="set_aside",
                failures=1, error="e", parked_at=NOW,
            )
        )  # fmt: skip
    assert await refused() == "the watcher 'w' of the asset 'a' has parked messages: 1"


async def test_queued_events_are_deleted_only_if_the_user_says_so(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_asset(database, 2, "b")
    await add_dag(database, "d", {"any": [asset_json("a"), asset_json("b")]}, assets=[1, 2])
    await emit(database, 1, 5)
    (kept,) = await emit(database, 2)
    await _stale(database, "d")
    with pytest.raises(MoveRefused, match="events of the asset 'a' wait for DAGs: 5 in") as raised:
        await delete_asset(database, TESTER, "a")
    assert "--with-queued" in str(raised.value.hint)
    assert await count_events(database) == 6
    deleted = await delete_asset(database, TESTER, "a", with_queued=True)
    assert (deleted.asset_events, deleted.queued_events) == (5, 5)
    assert await queue_of(database, "d") == [(kept, None)]


async def test_an_event_in_a_run_that_has_not_ended_keeps_its_asset(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_dag(database, "d", asset_json("a"), assets=[1])
    await emit(database, 1)
    assert await Scheduler(database).run_once() == 1
    await _stale(database, "d")
    (run,) = await runs_of(database, "d")
    with pytest.raises(MoveRefused, match=f"{run.run_id[:15]}.* has events of the asset 'a'"):
        await delete_asset(database, TESTER, "a", with_queued=True)
    await end(database, run)
    await delete_asset(database, TESTER, "a")
    assert len(await runs_of(database, "d")) == 1
    assert await count(database, QueuedAssetEvent) == 0


async def test_events_that_wait_for_partition_keys_are_deleted_too(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_dag(database, "d", partitioned(partitioned_asset("a")), assets=[1], max_active_runs=0)
    await emit_keys(database, ["eu", "us"], asset_id=1)
    await Scheduler(database).run_once()
    await _stale(database, "d")
    assert await count(database, DagPartitionEvent) == 2
    with pytest.raises(MoveRefused, match="wait for DAGs: 2"):
        await delete_asset(database, TESTER, "a")
    await delete_asset(database, TESTER, "a", with_queued=True)
    for table in (DagPartitionEvent, DagPartitionPart, QueuedAssetEvent):
        assert await count(database, table) == 0


async def test_a_stale_dag_goes_with_its_runs_and_its_tasks_events_stay(
    database: Database, tmp_path: Path
) -> None:
    await add_asset(database, 1, "a")
    await add_alias(database, 5, "alias")
    for dag_id in ("gone", "stays"):
        await add_dag(database, dag_id, asset_json("a"), assets=[1], aliases=[5], events_per_run=1)
    await emit(database, 1, 5)
    await Scheduler(database).run_once()
    runs = await runs_of(database, "gone")
    assert len(runs) == 5
    await end(database, *runs)
    log = Path(log_path(str(tmp_path), "gone", runs[0].run_id))
    log.parent.mkdir(parents=True)
    log.touch()
    async with database.transaction() as session:
        for run in runs[:2]:
            await session.execute(
                update(DagRun).where(DagRun.id == run.id).values(log_home=str(tmp_path))
            )
        session.add(TaskRun(run_pk=runs[0].id, task_id="t", state="success"))
        session.add(
            Backfill(
                id=1, dag_id="gone", from_date=NOW, to_date=NOW, reprocess="none", max_active=1,
                created_at=NOW,
            )
        )  # fmt: skip
        await session.flush()
        session.add(BackfillKey(backfill_id=1, number=1, partition_key="k", state="pending"))
        session.add(
            DagPartition(dag_id="gone", partition_key="k", due_at=NOW, newest_at=NOW, runs=0)
        )
        emitted = NewAssetEvent(1, {}, "gone/r/t/a", 0, None, "gone", "r", "t")
        await record_events(session, [emitted])
    await _stale(database, "gone")
    deleted = await delete_dag(database, TESTER, "gone")
    assert (deleted.runs, deleted.logs, deleted.logs_elsewhere) == (5, 1, 1)
    assert not log.exists()
    assert [row.dag_id for row in await rows(database, Dag)] == ["stays"]
    assert len(await runs_of(database, "stays")) == 5
    assert len(await queue_of(database, "stays")) == 6
    of_dag: list[type[Base]] = [TaskRun, Backfill, BackfillKey, DagPartition]
    assert [await count(database, table) for table in of_dag] == [0] * 4
    for table in (DagScheduleAsset, DagScheduleAlias):
        assert await count(database, table) == 1
    assert await count_events(database) == 6
    # If a new DAG gets the id, its event is no repeat of the deleted DAG's event.
    async with database.transaction() as session:
        assert len(await record_events(session, [emitted])) == 1


async def test_a_dag_that_is_not_stale_or_has_work_is_refused(database: Database) -> None:
    await add_asset(database, 1, "a")
    await add_dag(database, "d", asset_json("a"), assets=[1])
    await emit(database, 1)
    await Scheduler(database).run_once()
    with pytest.raises(MoveRefused, match=r"the DAG 'd' is not stale: d.py defines it"):
        await delete_dag(database, TESTER, "d")
    await _stale(database, "d")
    with pytest.raises(MoveRefused, match="of 'd' has not ended") as raised:
        await delete_dag(database, TESTER, "d")
    assert "runs cancel d asset_triggered__" in str(raised.value.hint)
    with pytest.raises(UnknownDag):
        await delete_dag(database, TESTER, "nope")
    await end(database, *await runs_of(database, "d"))
    await delete_dag(database, TESTER, "d")
    assert await count(database, Dag) == 0
