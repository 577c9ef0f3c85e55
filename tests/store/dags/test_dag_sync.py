from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from tests.store.seeding import emit, queue_of
from triggerer.domain.dag_files.merging import merge
from triggerer.domain.dag_files.parsed import (
    ParsedAsset,
    ParsedDag,
    ParsedFile,
    ParsedWatcher,
    Problem,
)
from triggerer.scheduler import Scheduler
from triggerer.store.dags.listing import list_assets
from triggerer.store.dags.sync import Changed, read_incumbents, sync_folder
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.listing import list_asset_events
from triggerer.store.events.run_events import (
    Page,
    count_events,
    last_event,
    page_of_asset,
    page_of_run,
    triggering_assets,
)
from triggerer.store.runs.listing import find_run, list_runs
from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    AssetAliasMember,
    Dag,
    DagFile,
    DagScheduleAlias,
    DagScheduleAsset,
    Stream,
    StreamState,
    Trigger,
    Watcher,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def asset(name: str, uri: str | None = None, *, file: str = "a.py", **extra: Any) -> ParsedAsset:
    return ParsedAsset(name, uri or name, "asset", extra, f"{file}:1")


def watcher(of: str, name: str = "w", *, args: str = "1", stream: str = "s") -> ParsedWatcher:
    return ParsedWatcher(
        of, of, name, "a.py:1", "m.T", {"args": args}, f"trigger {args}", stream, f"key {stream}"
    )


def dag(dag_id: str, *names: str, alias: str | None = None, **values: Any) -> ParsedDag:
    leaves: list[dict[str, Any]] = [{"asset": {"name": name, "uri": name}} for name in names]
    if alias:
        leaves.append({"alias": alias})
    defaults: dict[str, Any] = {
        "location": "a.py:1",
        "description": None,
        "tags": [],
        "schedule": {"all": leaves} if leaves else None,
        "max_active_runs": 16,
        "events_per_run": None,
        "params": {},
        "tasks": [],
        "is_paused_upon_creation": False,
    }
    return ParsedDag(dag_id, **{**defaults, **values})


def file(path: str = "a.py", **values: Any) -> ParsedFile:
    return ParsedFile(path, 0.1, **values)


def broken(path: str = "a.py") -> ParsedFile:
    return file(path, errors=(Problem(path, 3, "syntax error"),), is_broken=True)


async def sync(database: Database, *files: ParsedFile, unparsed: tuple[str, ...] = ()) -> Changed:
    every: Mapping[str, ParsedFile | None] = {
        **{one.path: one for one in files},
        **dict.fromkeys(unparsed),
    }
    unusable = frozenset(path for path, one in every.items() if one is None or one.is_broken)
    async with database.transaction() as session:
        folder = merge(files, await read_incumbents(session), unusable=unusable)
        return await sync_folder(session, folder, every, now=NOW)


async def rows(database: Database, model: type[Any]) -> list[Any]:
    async with database.reading() as session:
        key = next(iter(model.__table__.primary_key.columns))
        return list(await session.scalars(select(model).order_by(key)))


FULL = file(
    assets=(asset("x", note=1), asset("y")),
    aliases=("z",),
    watchers=(watcher("x"), watcher("y", args="2")),
    dags=(dag("d", "x", "y", alias="z"), dag("by_hand")),
    warnings=(Problem("a.py", 2, "careful"),),
)


async def test_everything_that_a_file_defines_is_stored(database: Database) -> None:
    changed = await sync(database, FULL)
    assert changed.dag_ids == {"d", "by_hand"}
    assert changed.stream_digests == {"s"}
    x, y = await rows(database, Asset)
    assert (x.name, x.extra, x.declared_in) == ("x", {"note": 1}, "a.py")
    d = {row.dag_id: row for row in await rows(database, Dag)}["d"]
    assert (d.path, d.is_paused, d.is_stale, d.updated_at) == ("a.py", False, False, NOW)
    (alias,) = await rows(database, AssetAlias)
    refs = await rows(database, DagScheduleAsset)
    assert {(ref.dag_id, ref.asset_id) for ref in refs} == {("d", x.id), ("d", y.id)}
    (alias_ref,) = await rows(database, DagScheduleAlias)
    assert alias_ref.alias_id == alias.id
    triggers = {row.id: row for row in await rows(database, Trigger)}
    assert {
        (w.asset_id, w.name, triggers[w.trigger_id].digest, w.state, w.path)
        for w in await rows(database, Watcher)
    } == {
        (x.id, "w", "trigger 1", "waiting", "a.py"),
        (y.id, "w", "trigger 2", "waiting", "a.py"),
    }
    (stream,) = await rows(database, Stream)
    assert (stream.digest, stream.key, stream.epoch) == ("s", "key s", 0)
    (found,) = await rows(database, DagFile)
    assert (found.errors, len(found.warnings)) == ([], 1)


@pytest.mark.rule(
    "a trigger that serialises differently each time is deleted and made again at every parse"
)
async def test_nothing_is_written_when_nothing_changed(database: Database) -> None:
    await sync(database, FULL)
    written: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.split(None, 1)[0].upper() in {"INSERT", "UPDATE", "DELETE"}:
            written.append(statement)

    event.listen(database.writer.sync_engine, "before_cursor_execute", note)
    changed = await sync(database, FULL)
    assert written == []
    assert changed == Changed()
    # The listener sees writes, so the check above can fail.
    await sync(database, file())
    assert written


async def test_a_change_is_announced_when_it_is_committed(database: Database) -> None:
    with database.wakeups.subscribe(Signal.DAGS_CHANGED, Signal.STREAMS_CHANGED) as subscription:
        await sync(database, FULL)
        assert subscription.take_nowait() == {
            Signal.DAGS_CHANGED: {"d", "by_hand"},
            Signal.STREAMS_CHANGED: {"s"},
        }
        await sync(database, FULL)
        assert subscription.take_nowait() == {}


@pytest.mark.rule("15: a watcher survives a change of arguments")
async def test_a_watcher_keeps_its_row_when_its_arguments_change(database: Database) -> None:
    await sync(database, FULL)
    before = {row.asset_id: row for row in await rows(database, Watcher)}
    async with database.transaction() as session:
        await session.execute(update(Watcher).values(state="failing", error="old"))
    changed = await sync(
        database,
        file(
            assets=FULL.assets,
            watchers=(watcher("x", args="3", stream="t"), watcher("y", args="2")),
        ),
    )
    assert changed.stream_digests == {"s", "t"}
    after = {row.asset_id: row for row in await rows(database, Watcher)}
    assert {key: row.id for key, row in after.items()} == {
        key: row.id for key, row in before.items()
    }
    x, y = (after[key] for key in sorted(after))
    assert (x.state, x.error) == ("waiting", None)
    assert (y.state, y.error) == ("failing", "old")
    assert {row.digest for row in await rows(database, Trigger)} == {"trigger 2", "trigger 3"}


async def test_two_watchers_with_equal_triggers_share_one(database: Database) -> None:
    await sync(database, file(assets=FULL.assets, watchers=(watcher("x"), watcher("y"))))
    (trigger,) = await rows(database, Trigger)
    assert {row.trigger_id for row in await rows(database, Watcher)} == {trigger.id}


async def test_a_file_that_is_gone_leaves_stale_dags_and_no_watchers(database: Database) -> None:
    await sync(database, FULL)
    changed = await sync(database)
    assert changed.dag_ids == {"d", "by_hand"}
    assert changed.stream_digests == {"s"}
    assert all(row.is_stale for row in await rows(database, Dag))
    for model in (Trigger, Stream, DagFile):
        assert await rows(database, model) == []
    assert {row.trigger_id for row in await rows(database, Watcher)} == {None}
    async with database.reading() as session:
        assert (await read_incumbents(session)).watchers == {}
    assert [row.declared_in for row in await rows(database, Asset)] == [None, None]


async def test_a_stream_keeps_its_state_as_long_as_it_has_a_watcher(database: Database) -> None:
    assets = (asset("x"), asset("y"))
    await sync(database, file(assets=assets, watchers=(watcher("x"), watcher("y", args="2"))))
    async with database.transaction() as session:
        session.add(StreamState(stream_digest="s", epoch=1, value='{"n": 1}'))
    await sync(database, file(assets=assets, watchers=(watcher("y", args="2"),)))
    assert [row.value for row in await rows(database, StreamState)] == ['{"n": 1}']
    await sync(database, file(assets=assets))
    assert await rows(database, StreamState) == []


async def test_the_guarantee_of_a_watcher_is_stored_with_its_trigger(database: Database) -> None:
    asking = replace(watcher("x"), guarantee="at_least_once")
    await sync(database, file(assets=FULL.assets, watchers=(asking,)))
    assert [row.guarantee for row in await rows(database, Trigger)] == ["at_least_once"]


async def test_a_stream_is_named_as_its_trigger_describes_it_now(database: Database) -> None:
    await sync(database, FULL)
    renamed = replace(watcher("x"), stream_key="kafka x (group g)")
    await sync(database, file(assets=FULL.assets, watchers=(renamed,)))
    assert [row.key for row in await rows(database, Stream)] == ["kafka x (group g)"]


async def test_a_new_text_of_a_streams_key_is_announced(database: Database) -> None:
    """Without the announcement, an open page would show the old text until another change."""
    await sync(database, FULL)
    watchers = tuple(replace(one, stream_key="kafka x") for one in FULL.watchers)
    renamed = replace(FULL, watchers=watchers)
    with database.wakeups.subscribe(Signal.STREAMS_CHANGED) as subscription:
        await sync(database, renamed)
        assert subscription.take_nowait() == {Signal.STREAMS_CHANGED: {"s"}}


async def test_a_stream_that_two_watchers_write_differently_is_not_renamed_at_each_update(
    database: Database,
) -> None:
    x, y = FULL.watchers
    two_texts = replace(FULL, watchers=(replace(x, stream_key="first"), y))
    await sync(database, two_texts)
    assert await sync(database, two_texts) == Changed()


@pytest.mark.parametrize("expires_in_s", [60, -60])
async def test_a_stream_is_not_deleted_while_it_is_leased(
    database: Database, expires_in_s: int
) -> None:
    await sync(database, FULL)
    expires_at = datetime.now(UTC) + timedelta(seconds=expires_in_s)
    async with database.transaction() as session:
        await session.execute(update(Stream).values(owner="me", epoch=4, expires_at=expires_at))
    await sync(database)
    assert len(await rows(database, Stream)) == (1 if expires_in_s > 0 else 0)


async def test_a_dag_that_returns_is_not_stale_and_not_unpaused(database: Database) -> None:
    await sync(database, FULL)
    async with database.transaction() as session:
        await session.execute(update(Dag).values(is_paused=True))
    await sync(database)
    await sync(database, FULL)
    assert [(row.is_paused, row.is_stale) for row in await rows(database, Dag)] == [
        (True, False)
    ] * 2


async def test_a_dag_is_paused_upon_creation_only(database: Database) -> None:
    paused = file(dags=(dag("d", is_paused_upon_creation=True),))
    await sync(database, paused)
    assert [row.is_paused for row in await rows(database, Dag)] == [True]
    async with database.transaction() as session:
        await session.execute(update(Dag).values(is_paused=False))
    await sync(database, file(dags=(dag("d", is_paused_upon_creation=True, description="new"),)))
    assert [row.is_paused for row in await rows(database, Dag)] == [False]


@pytest.mark.parametrize("how", ["broken", "unparsed"])
async def test_a_file_that_cannot_be_used_keeps_its_definitions(
    database: Database, how: str
) -> None:
    await sync(database, FULL)
    changed = await (
        sync(database, broken()) if how == "broken" else sync(database, unparsed=("a.py",))
    )
    # Executors learn that runs of a broken file have to wait.
    told = {"d", "by_hand"} if how == "broken" else set()
    assert (changed.dag_ids, changed.stream_digests) == (told, set())
    assert not any(row.is_stale for row in await rows(database, Dag))
    assert len(await rows(database, Watcher)) == 2
    assert [row.declared_in for row in await rows(database, Asset)] == ["a.py", "a.py"]
    (found,) = await rows(database, DagFile)
    if how == "broken":
        assert found.errors == [{"file": "a.py", "line": 3, "reason": "syntax error"}]


async def test_a_broken_watcher_keeps_its_row_and_the_rest_goes_on(database: Database) -> None:
    await sync(database, FULL)
    key = watcher("x").key
    await sync(
        database,
        file(assets=FULL.assets, broken_watchers=(key,), errors=(Problem("a.py", 1, "no"),)),
    )
    (kept,) = [row for row in await rows(database, Watcher) if row.trigger_id is not None]
    x, _ = await rows(database, Asset)
    assert kept.asset_id == x.id


@pytest.mark.rule("a subscriber that is created again reads from the wrong position")
async def test_a_watcher_that_comes_back_is_the_one_that_went(database: Database) -> None:
    """The watcher keeps its id. Under a new id, a redelivered message would fire a second time."""
    await sync(database, FULL)
    before = {(row.asset_id, row.name): row.id for row in await rows(database, Watcher)}
    await sync(database)
    changed = await sync(database, FULL)
    assert changed.stream_digests == {"s"}
    after = {(row.asset_id, row.name): row.id for row in await rows(database, Watcher)}
    assert after == before
    assert None not in {row.trigger_id for row in await rows(database, Watcher)}


async def test_a_newcomer_that_contradicts_is_left_out_and_named(database: Database) -> None:
    await sync(database, file("z.py", dags=(dag("d"),), assets=(asset("n", "u", file="z.py"),)))
    newer = (
        file("a.py", dags=(dag("d"), dag("other"))),
        file("b.py", assets=(asset("n", "v", file="b.py"),)),
    )
    await sync(
        database, file("z.py", dags=(dag("d"),), assets=(asset("n", "u", file="z.py"),)), *newer
    )
    assert [(row.dag_id, row.path) for row in await rows(database, Dag)] == [("d", "z.py")]
    errors = {row.path: row.errors for row in await rows(database, DagFile)}
    assert errors["z.py"] == []
    assert "also defined at" in errors["a.py"][0]["reason"]
    assert "b.py:1 contradicts" in errors["b.py"][0]["reason"]
    assert "z.py:1" in errors["b.py"][0]["reason"]
    # Once the old file is gone, the definitions of the new files are in force.
    await sync(database, *newer)
    assert {row.dag_id: (row.path, row.is_stale) for row in await rows(database, Dag)} == {
        "d": ("a.py", False),
        "other": ("a.py", False),
    }


async def test_a_newcomer_does_not_take_a_dag_from_a_broken_file(database: Database) -> None:
    await sync(database, file("z.py", dags=(dag("d"),)))
    await sync(database, broken("z.py"), file("a.py", dags=(dag("d"),)))
    assert [(row.dag_id, row.path) for row in await rows(database, Dag)] == [("d", "z.py")]


async def test_a_thing_that_moves_to_another_file_goes_with_it(database: Database) -> None:
    await sync(database, FULL)
    before = [row.id for row in await rows(database, Watcher)]
    moved = file("b.py", assets=FULL.assets, watchers=FULL.watchers, dags=FULL.dags)
    await sync(database, moved)
    assert [row.id for row in await rows(database, Watcher)] == before
    assert {row.path for row in await rows(database, Dag)} == {"b.py"}
    assert not any(row.is_stale for row in await rows(database, Dag))


async def test_an_asset_keeps_its_row_when_its_name_or_uri_changes(database: Database) -> None:
    await sync(database, file(assets=(asset("n", "u"), asset("m", "v"))))
    ids = {row.uri: row.id for row in await rows(database, Asset)}
    await sync(database, file(assets=(asset("renamed", "u"), asset("m", "moved"))))
    assert {row.uri: (row.id, row.name) for row in await rows(database, Asset)} == {
        "u": (ids["u"], "renamed"),
        "moved": (ids["v"], "m"),
    }


async def test_events_keep_the_name_and_the_uri_that_their_asset_had(database: Database) -> None:
    await sync(database, file(assets=(asset("n", "u"),)))
    (row,) = await rows(database, Asset)
    emitted = {}
    for name, uri in (("n", "u"), ("n", "u2"), ("n", "u3"), ("m", "u3"), ("m", "u"), ("n", "u")):
        await sync(database, file(assets=(asset(name, uri),)))
        if uri != "u2":  # `u2` gets no event
            for _ in range(2):
                (event_id,) = await emit(database, row.id)
                emitted[event_id] = (name, uri)
    async with database.reading() as session:
        listed = await list_asset_events(session)
        assert {one.id: (one.asset_name, one.asset_uri) for one in listed} == emitted
        for given in ("n", "m", "u", "u2", "u3"):
            found = {one.id for one in await list_asset_events(session, asset=given)}
            assert found == {key for key, names in emitted.items() if given in names}
        (view,) = await list_assets(session)
        assert (view.name, view.uri) == ("n", "u")
        # A task that names a URI reads the events that were emitted under this URI.
        page = Page(last_id=100, newest_first=False, beyond=None, skip=0, limit=10)
        for uri in ("u", "u2", "u3"):
            ids = [key for key, names in emitted.items() if uri in names]
            read = await page_of_asset(session, page, uri=uri)
            assert [one["id"] for one in read] == ids
            assert {one["asset_uri"] for one in read} <= {uri}
            assert await last_event(session, uri=uri) == max(ids, default=0)
            assert await count_events(session, last_id=100, uri=uri) == len(ids)


async def test_a_uri_that_changes_takes_nothing_from_the_dags_that_wait(database: Database) -> None:
    def defined(uri: str) -> ParsedFile:
        schedule = {"asset": {"name": "n", "uri": uri}}
        return file(
            assets=(asset("n", uri),),
            watchers=(replace(watcher("n"), asset_uri=uri),),
            aliases=("z",),
            dags=(dag("d", schedule=schedule),),
        )

    await sync(database, defined("u"))
    (row,), (watched,) = await rows(database, Asset), await rows(database, Watcher)
    async with database.transaction() as session:
        alias_id = await session.scalar(select(AssetAlias.id))
        session.add(AssetAliasMember(alias_id=alias_id, asset_id=row.id))
    (old,) = await emit(database, row.id)
    changed = await sync(database, defined("u2"))
    # The asset's row has the new URI, and the watcher still refers to this row. So the watcher continues to run, and
    # its next event is queued.
    assert not changed.stream_digests
    (now,) = await rows(database, Watcher)
    assert (now.id, now.asset_id) == (watched.id, row.id)
    (new,) = await emit(database, row.id)
    assert await queue_of(database, "d") == [(old, None), (new, None)]
    assert await Scheduler(database).run_once() == 1
    async with database.reading() as session:
        (run,) = await list_runs(session, with_events=True)
        assert run.asset_event_ids == [old, new]
        run_pk = await find_run(session, "d", run.run_id)
        assert run_pk is not None
        (triggering,) = await triggering_assets(session, run_pk)
        assert (triggering.name, triggering.uri, triggering.total) == ("n", "u2", 2)
        page = Page(last_id=new, newest_first=False, beyond=None, skip=0, limit=10)
        read = await page_of_run(session, page, run_pk=run_pk, uri="u2")
        assert [one["asset_uri"] for one in read] == ["u", "u2"]
        read = await page_of_asset(session, page, alias="z")
        assert [one["asset_uri"] for one in read] == ["u", "u2"]


async def test_an_asset_without_events_under_its_present_uri_has_no_last_event(
    database: Database,
) -> None:
    await sync(database, file(assets=(asset("n", "u"),)))
    (row,) = await rows(database, Asset)
    await emit(database, row.id)
    async with database.reading() as session:
        (view,) = await list_assets(session)
        assert view.last_event_timestamp is not None
    await sync(database, file(assets=(asset("n", "u2"),)))
    async with database.reading() as session:
        (view,) = await list_assets(session)
        assert view.last_event_timestamp is None


async def test_two_assets_may_swap_their_uris(database: Database) -> None:
    await sync(database, file(assets=(asset("n", "u"), asset("m", "v"))))
    ids = {row.name: row.id for row in await rows(database, Asset)}
    await sync(database, file(assets=(asset("n", "v"), asset("m", "u"))))
    found = {row.name: (row.id, row.uri) for row in await rows(database, Asset)}
    assert found == {"n": (ids["n"], "v"), "m": (ids["m"], "u")}


async def test_an_asset_takes_the_name_of_one_and_the_uri_of_another(database: Database) -> None:
    await sync(database, file(assets=(asset("n", "u"), asset("m", "v"))))
    ids = {row.name: row.id for row in await rows(database, Asset)}
    await sync(database, file(assets=(asset("n", "v"),)))
    found = {row.id: (row.name, row.uri) for row in await rows(database, Asset)}
    assert found[ids["n"]] == ("n", "v")
    assert found[ids["m"]][0].startswith("x-retired:")


async def test_an_asset_that_an_event_created_is_adopted(database: Database) -> None:
    async with database.transaction() as session:
        session.add(Asset(name="u", uri="u", created_at=NOW))
    await sync(database, file(assets=(asset("n", "u"),)))
    (row,) = await rows(database, Asset)
    assert (row.name, row.declared_in) == ("n", "a.py")


async def test_a_changed_schedule_changes_the_assets_that_the_dag_waits_for(
    database: Database,
) -> None:
    await sync(database, FULL)
    changed = await sync(
        database, file(assets=FULL.assets, aliases=("z",), dags=(dag("d", "y"), dag("by_hand")))
    )
    assert changed.dag_ids == {"d"}
    _, y = await rows(database, Asset)
    (ref,) = await rows(database, DagScheduleAsset)
    assert ref.asset_id == y.id
    assert await rows(database, DagScheduleAlias) == []


@pytest.mark.rule(
    "14: the members are known before any plugin is made, because parsing stored the key's digest"
)
async def test_a_key_that_the_same_arguments_now_give_moves_the_trigger(
    database: Database,
) -> None:
    await sync(database, FULL)
    same = tuple(watcher(w.asset_name, args=w.kwargs["args"], stream="new") for w in FULL.watchers)
    changed = await sync(database, file(assets=FULL.assets, watchers=same))
    assert changed.stream_digests == {"s", "new"}
    assert [row.digest for row in await rows(database, Stream)] == ["new"]


async def test_a_sync_that_is_rolled_back_leaves_nothing(database: Database) -> None:
    async def failing(session: AsyncSession) -> None:
        folder = merge([FULL], await read_incumbents(session))
        await sync_folder(session, folder, {"a.py": FULL}, now=NOW)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as session:
            await failing(session)
    async with database.reading() as session:
        assert await session.scalar(select(func.count()).select_from(Asset)) == 0
