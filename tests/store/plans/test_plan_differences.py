"""What `triggerer plan` says about differences between a new folder and the store: DAGs, watchers and assets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import NOW, asset_json
from triggerer.dag_processing import parse_once
from triggerer.operations.planning import plan as module
from triggerer.operations.planning import present_dags
from triggerer.operations.planning.plan import Change, FolderPlan, plan_folder
from triggerer.operations.planning.watchers import WatcherPlan
from triggerer.scheduler import explaining_partitions
from triggerer.store.dags.sync import sync_folder
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.schema.models import (
    Asset,
    ParkedBody,
    ParkedMessage,
    Stream,
    Watcher,
    WatcherPosition,
)

HEADER = """
from datetime import timedelta
from triggerer import DAG, Asset, AssetAlias, AssetWatcher, task
from watchers.directory import DirectoryFileDeleteTrigger, FileDeleteTrigger
from watchers.http import HttpPollTrigger
from watchers.kafka import KafkaEventTrigger
"""
ON_A = """
a = Asset("x-test://a", name="a", watchers=[{watchers}])
with DAG("on_a", schedule=a):
    @task
    def load(): ...
    load()
"""
KAFKA = 'AssetWatcher("w", KafkaEventTrigger("{topic}", match={{"value.id": {number}}}))'


class Folders:
    """Two folders: the one in force, and the one that is planned."""

    def __init__(self, database: Database, root: Path) -> None:
        self._database = database
        self.old, self.new = root / "old", root / "new"
        for folder in (self.old, self.new):
            folder.mkdir()

    async def put_in_force(self, **files: str) -> None:
        for name, code in files.items():
            (self.old / f"{name}.py").write_text(HEADER + code)
        parsed = await parse_once(self.old)
        assert not parsed.errors
        async with self._database.transaction() as session:
            found = {file.path: file for file in parsed.files}
            await sync_folder(session, parsed.folder, found, now=NOW)

    async def plan(self, *, dag: str | None = None, **files: str) -> FolderPlan:
        for name, code in files.items():
            (self.new / f"{name}.py").write_text(HEADER + code)
        return await plan_folder(self._database, await parse_once(self.new), dag=dag)


@pytest.fixture
def folders(database: Database, tmp_path: Path) -> Folders:
    return Folders(database, tmp_path)


def differences(found: FolderPlan, dag_id: str) -> dict[str, tuple[str, Any, Any]]:
    (dag,) = (one for one in found.dags if one.dag_id == dag_id)
    return {one.name: (one.kind.value, one.before, one.after) for one in dag.differences}


async def test_a_changed_value_of_a_dag_is_named_with_both_values(folders: Folders) -> None:
    await folders.put_in_force(
        a="""
a = Asset("x-test://a", name="a")
with DAG("d", schedule=a, max_active_runs=4, params={"region": "eu", "api_token": "s1"}, tags=["x"]):
    @task(pool=None)
    def first(): ...
    @task
    def second(): ...
    first() >> second()
with DAG("same", schedule=a): pass
"""
    )
    found = await folders.plan(
        a="""
a, b = Asset("x-test://a", name="a"), Asset("x-test://b", name="b")
with DAG("d", schedule=a & b, max_active_runs=2, params={"region": "us", "api_token": "s2", "n": 1},
         quiet_period=timedelta(minutes=1)):
    @task
    def second(): ...
    @task(outlets=[b])
    def third(): ...
    second() >> third()
with DAG("same", schedule=a): pass
"""
    )
    assert {one.dag_id: one.change for one in found.dags} == {
        "d": Change.CHANGED,
        "same": Change.SAME,
    }
    assert differences(found, "same") == {}
    outlet = [{"asset": {"name": "b", "uri": "x-test://b"}}]
    assert differences(found, "d") == {
        "schedule": ("changed", asset_json("a"), {"all": [asset_json("a"), asset_json("b")]}),
        "quiet_period": ("changed", None, 60.0),
        "max_active_runs": ("changed", 4, 2),
        "tags": ("changed", ["x"], []),
        "params.api_token": ("changed", "***", "***"),
        "params.n": ("added", None, 1),
        "params.region": ("changed", "eu", "us"),
        "tasks.first": ("removed", {}, None),
        "tasks.second.upstream": ("changed", ["first"], []),
        "tasks.third": ("added", None, {"upstream": ["second"], "outlets": outlet}),
    }
    (hidden,) = (one for dag in found.dags for one in dag.differences if one.is_hidden)
    assert hidden.name == "params.api_token"


async def test_a_description_alone_changes_a_dag_and_none_of_its_runs(folders: Folders) -> None:
    await folders.put_in_force(a='with DAG("d", schedule="@hourly"): pass\n')
    found = await folders.plan(a='with DAG("d", schedule="@hourly", description="x"): pass\n')
    (dag,) = found.dags
    assert (dag.change, dag.before) == (Change.CHANGED, dag.after)
    assert dag.before is not None
    assert dag.runs_in_both == len(dag.before.runs) > 0
    assert differences(found, "d") == {"description": ("changed", None, "x")}


async def test_an_asset_that_loses_its_only_watcher_and_one_that_nothing_feeds_are_named(
    folders: Folders,
) -> None:
    await folders.put_in_force(
        a=ON_A.format(watchers='AssetWatcher("f", DirectoryFileDeleteTrigger("/tmp/in", "go"))'),
        b='with DAG("on_b", schedule=Asset("x-test://b", name="b")): pass\n',
    )
    found = await folders.plan(
        a=ON_A.format(watchers=""),
        b='with DAG("on_b", schedule=Asset("x-test://b", name="b")): pass\n',
        c='with DAG("on_c", schedule=Asset("x-test://c", name="c") & AssetAlias("many")): pass\n',
    )
    shown = [
        (one.name, one.uri, one.waiting_dags, one.lost_watchers, one.fed_by, one.is_new)
        for one in found.unfed_assets
    ]
    assert shown == [
        ("a", "x-test://a", ("on_a",), ("f",), (), True),
        # Nothing feeds `b` now, either.
        ("b", "x-test://b", ("on_b",), (), (), False),
        ("c", "x-test://c", ("on_c",), (), (), True),
        ("many", None, ("on_c",), (), (), True),
    ]
    (gone,) = found.watchers
    assert (gone.asset_name, gone.name, gone.change) == ("a", "f", "gone")
    assert gone.effect == "its position ends (it is not behind now)"
    one_dag = await folders.plan(dag="on_b")
    assert [one.name for one in one_dag.unfed_assets] == ["b"]
    assert one_dag.watchers == ()


async def test_an_asset_that_a_task_feeds_is_named_only_if_it_loses_its_watcher(
    folders: Folders,
) -> None:
    feeding = """
with DAG("feeds", schedule=None):
    @task(outlets=[Asset("x-test://a", name="a"), Asset("x-test://e", name="e")])
    def make(): ...
    make()
with DAG("on_e", schedule=Asset("x-test://e", name="e")): pass
"""
    watcher = 'AssetWatcher("f", FileDeleteTrigger("/tmp/in/go"))'
    await folders.put_in_force(a=ON_A.format(watchers=watcher), b=feeding)
    found = await folders.plan(a=ON_A.format(watchers=""), b=feeding)
    (a,) = found.unfed_assets
    assert (a.name, a.lost_watchers, a.fed_by) == ("a", ("f",), ("feeds.make",))
    assert (await folders.plan(a=ON_A.format(watchers=watcher))).unfed_assets == ()


async def planned_watcher(
    folders: Folders, database: Database, before: str, after: str, *, is_behind: bool = False
) -> WatcherPlan:
    await folders.put_in_force(a=ON_A.format(watchers=before))
    if is_behind:
        async with database.transaction() as session:
            await _fall_behind(session)
    (found,) = (await folders.plan(a=ON_A.format(watchers=after))).watchers
    return found


async def _fall_behind(session: AsyncSession) -> None:
    """Let the only watcher fall behind in two lanes, and store three messages for it."""
    (watcher,) = await session.scalars(select(Watcher.id))
    (stream,) = await session.scalars(select(Stream.digest))
    for lane in ("1", "2"):
        position = [None, 5]
        session.add(
            WatcherPosition(
                watcher_id=watcher, lane=lane, stream_digest=stream, position=position, since=NOW
            )
        )
    for number in range(3):
        body = ParkedBody(
            stream_digest=stream, idempotency_key=str(number), data=b"{}", size_bytes=2
        )
        session.add(body)
        await session.flush()
        session.add(
            ParkedMessage(
                watcher_id=watcher,
                body_id=body.id,
                lane="1",
                idempotency_key=str(number),
                state="kept",
                failures=1,
                parked_at=NOW,
            )
        )


async def test_changed_arguments_keep_positions_and_backlog(
    folders: Folders, database: Database
) -> None:
    before, after = (KAFKA.format(topic="t", number=number) for number in (1, 2))
    found = await planned_watcher(folders, database, before, after, is_behind=True)
    assert (found.change, found.is_stream_changed) == ("changed", False)
    (match,) = found.differences
    assert (match.name, match.before, match.after) == ("match", {"value.id": 1}, {"value.id": 2})
    assert (found.positions, found.messages) == (2, 3)
    assert found.effect == (
        "its stream stays: it keeps its positions and its backlog"
        " (behind in 2 lanes, 3 stored messages now)"
    )


async def test_a_changed_stream_ends_positions_and_sets_messages_aside(
    folders: Folders, database: Database
) -> None:
    before, after = (KAFKA.format(topic=topic, number=1) for topic in ("t", "u"))
    found = await planned_watcher(folders, database, before, after, is_behind=True)
    assert (found.change, found.is_stream_changed) == ("changed", True)
    assert [one.name for one in found.differences] == ["topics"]
    assert found.stream_before != found.stream_after
    assert found.effect.startswith(
        "its stream changes: its position ends, and its stored messages are set aside"
        " (behind in 2 lanes, 3 stored messages now); the new stream begins where"
    )


async def test_the_plan_of_a_changed_stream_matches_the_effect_of_the_files(
    folders: Folders, database: Database
) -> None:
    """Positions stay when only `match` changes, and go when the topic changes."""
    for topic, expected in (("t", 2), ("u", 0)):
        after = KAFKA.format(topic=topic, number=2)
        if topic == "t":
            before = KAFKA.format(topic="t", number=1)
            await planned_watcher(folders, database, before, after, is_behind=True)
        await folders.put_in_force(a=ON_A.format(watchers=after))
        async with database.reading() as session:
            assert len(list(await session.scalars(select(WatcherPosition)))) == expected
            states = set(await session.scalars(select(ParkedMessage.state)))
        assert states == ({"kept"} if expected else {"set_aside"})


async def test_secrets_in_arguments_are_hidden_and_their_change_is_said(
    folders: Folders, database: Database
) -> None:
    before, after = (
        f'AssetWatcher("p", HttpPollTrigger("http://127.0.0.1:9/x?api_key={key}"))'
        for key in ("abcdefgh", "ijklmnop")
    )
    found = await planned_watcher(folders, database, before, after)
    (url,) = found.differences
    assert url.is_hidden
    assert url.before == url.after == "http://127.0.0.1:9/x?api_key=***"
    assert "abcdefgh" not in repr(found)
    assert "ijklmnop" not in repr(found)
    assert found.is_stream_changed


async def test_a_new_class_a_new_guarantee_and_a_trigger_that_runs_alone_are_told(
    folders: Folders, database: Database
) -> None:
    before = 'AssetWatcher("w", FileDeleteTrigger("/tmp/in/go"))'
    after = 'AssetWatcher("w", FileDeleteTrigger("/tmp/in/go"), guarantee="at_least_once")'
    found = await planned_watcher(folders, database, before, after)
    assert [(one.name, one.before, one.after) for one in found.differences] == [
        ("guarantee", None, "at_least_once")
    ]
    assert not found.is_stream_changed
    other = 'AssetWatcher("w", DirectoryFileDeleteTrigger("/tmp/in", "go"))'
    (moved,) = (await folders.plan(a=ON_A.format(watchers=other))).watchers
    names = {one.name: one.kind.value for one in moved.differences}
    assert names == {
        "trigger": "changed",
        "directory": "added",
        "filename": "added",
        "filepath": "removed",
    }


async def test_new_watchers_open_a_stream_or_join_one(folders: Folders) -> None:
    first = KAFKA.format(topic="t", number=1)
    await folders.put_in_force(a=ON_A.format(watchers=first))
    others = [first, *(KAFKA.format(topic=topic, number=2) for topic in ("t", "u"))]
    names = [
        one.replace('"w"', f'"w{number}"') if number else one for number, one in enumerate(others)
    ]
    found = await folders.plan(a=ON_A.format(watchers=", ".join(names)))
    joins, opens = found.watchers
    assert (joins.name, joins.change, opens.name, opens.change) == ("w1", "new", "w2", "new")
    assert joins.effect.startswith("it joins a stream that is read already")
    assert opens.effect.startswith("its stream is new, and begins where")


async def test_a_watcher_that_is_broken_or_whose_file_cannot_be_read_stays(
    folders: Folders,
) -> None:
    await folders.put_in_force(a=ON_A.format(watchers=KAFKA.format(topic="t", number=1)))
    found = await folders.plan(a="this is no Python\n")
    assert (found.watchers, found.unfed_assets) == ((), ())
    assert [one.change for one in found.dags] == [Change.KEPT]


async def test_an_asset_that_is_renamed_takes_its_watchers_with_it(folders: Folders) -> None:
    code = ON_A.format(watchers=KAFKA.format(topic="t", number=1))
    await folders.put_in_force(a=code)
    found = await folders.plan(a=code.replace('name="a"', 'name="renamed"'))
    assert (found.watchers, found.unfed_assets) == ((), ())
    found = await folders.plan(a=ON_A.format(watchers="").replace('name="a"', 'name="renamed"'))
    assert [one.lost_watchers for one in found.unfed_assets] == [("w",)]


async def test_no_transaction_is_open_while_something_is_computed(
    folders: Folders, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends a session that is idle in a transaction for too long."""
    keyed = """
from triggerer.timetables import PartitionedAssetTimetable
a = Asset("x-test://a", name="a")
with DAG("keyed", schedule=PartitionedAssetTimetable(assets=a), quiet_period=timedelta(minutes={minutes})): pass
with DAG("timed", schedule="{preset}"): pass
with DAG("same", schedule="@hourly"): pass
"""
    await folders.put_in_force(a=keyed.format(minutes=1, preset="@hourly"))
    async with database.transaction() as session:
        (asset_id,) = await session.scalars(select(Asset.id))
        await record_events(session, [NewAssetEvent(asset_id, partition_key="x")] * 3)
    open_sessions, computed = set[AsyncSession](), dict[str, int]()
    reading = Database.reading

    @asynccontextmanager
    async def noting(self: Database) -> AsyncIterator[AsyncSession]:
        async with reading(self) as session:
            open_sessions.add(session)
            yield session
        open_sessions.remove(session)

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def computing(*arguments: Any, **options: Any) -> Any:
            name = function.__name__
            computed[name] = max(computed.get(name, 0), len(open_sessions))
            return function(*arguments, **options)

        return computing

    monkeypatch.setattr(Database, "reading", noting)
    for where, name in (
        (module, "replay"),
        (module, "look"),
        (module, "differences_of_dags"),
        (present_dags, "definition_in"),
        (present_dags, "snapshot_of"),
        (present_dags, "partitioner_of"),
        (explaining_partitions, "partitioner_of"),
    ):
        monkeypatch.setattr(where, name, watched(getattr(where, name)))
    found = await folders.plan(a=keyed.format(minutes=2, preset="@daily"))
    assert [one.change for one in found.dags] == [Change.CHANGED, Change.SAME, Change.CHANGED]
    assert [one.error for one in found.dags] == [None] * 3
    assert computed == dict.fromkeys(
        ("snapshot_of", "definition_in", "partitioner_of", "differences_of_dags", "look", "replay"),
        0,
    )
