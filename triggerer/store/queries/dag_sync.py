"""Updates the store to what the DAG files define; only differences are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import and_, delete, exists, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.conditions import aliases_of, assets_of
from triggerer.domain.merging import AssetKey, Folder, Incumbents
from triggerer.domain.missing_files import MissingFiles, judge_missing
from triggerer.domain.parsed import ParsedDag, ParsedFile, ParsedWatcher, WatcherKey
from triggerer.domain.schedules import condition_in_json
from triggerer.store.engine.database import database_now
from triggerer.store.leases import is_free
from triggerer.store.models import (
    Asset,
    AssetAlias,
    Dag,
    DagFile,
    DagScheduleAlias,
    DagScheduleAsset,
    Stream,
    Trigger,
    Watcher,
)
from triggerer.store.queries.opening import Openings, Reading, sync_openings
from triggerer.store.queries.parked import set_kept_aside_without_stream
from triggerer.store.queries.positions import drop_positions_without_stream
from triggerer.store.queries.scheduling.due_moments import renew_due_moments
from triggerer.store.queries.scheduling.remapping import return_to_queue
from triggerer.store.queries.stream_states import drop_states_without_watchers
from triggerer.store.wakeups.signals import Signal, announce

# Two DAG processors on one database take turns. Any number that nobody else uses.
_LOCK: Final = 0x7472_6967


@dataclass(slots=True)
class Changed:
    """What was written; all empty if nothing was."""

    files: set[str] = field(default_factory=set)
    dag_ids: set[str] = field(default_factory=set)
    stream_digests: set[str] = field(default_factory=set)
    openings: Openings = field(default_factory=Openings)
    missing: MissingFiles = field(default_factory=MissingFiles)
    """The files that are not in the folder, whether or not that is new."""


async def read_incumbents(session: AsyncSession) -> Incumbents:
    """Return what is in force: DAGs that are not stale, declared assets, watchers, and known files."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    dags = await session.execute(select(Dag.dag_id, Dag.path).where(~Dag.is_stale))
    assets = await session.execute(
        select(Asset.name, Asset.uri, Asset.declared_in).where(Asset.declared_in.is_not(None))
    )
    watchers = await session.execute(
        select(Asset.name, Asset.uri, Watcher.name, Watcher.path)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Watcher.trigger_id.is_not(None))
    )
    files = frozenset(await session.scalars(select(DagFile.path)))
    return Incumbents(
        dags={row.dag_id: row.path for row in dags},
        assets={AssetKey(name, uri): path or "" for name, uri, path in assets},
        watchers={WatcherKey(asset, uri, name): path for asset, uri, name, path in watchers},
        files=files,
    )


async def sync_folder(
    session: AsyncSession,
    folder: Folder,
    files: Mapping[str, ParsedFile | None],
    *,
    now: datetime,
    removal_grace: timedelta = timedelta(),
    gone_for: Mapping[str, timedelta] | None = None,
    reading: Reading | None = None,
) -> Changed:
    """Write what differs from the folder, in the caller's transaction, and announce it.

    What comes from a file that is broken, contradicts another, is not parsed yet or is missing for less than
    `removal_grace` stays as it is. DAGs of files that are deleted become stale; their watchers, triggers and
    streams are removed, a stream once it is free. Whether a DAG is paused is only set when it is new. A watcher
    keeps its row when its trigger changes, an asset when its name or its URI does.

    Args:
        folder: What all files define together.
        files: Every file of the folder, None where it was not parsed yet.
        gone_for: How long ago files were seen last that are missing, as far as that is known.
        reading: Whether new streams have to stay closed; None: they need not.
    """
    changed = Changed()
    await _sync_files(session, folder, files, changed, now, removal_grace, gone_for)
    kept = changed.missing.away.keys() | {
        path
        for path, file in files.items()
        if file is None or file.is_broken or path in folder.conflicts
    }
    assets = await _sync_assets(session, folder, kept, now)
    aliases = await _sync_aliases(session, folder.aliases)
    remapped = await _sync_dags(session, folder, kept, changed, now)
    await session.flush()
    # Whoever divides holds the lock of the DAG's row, which was written just now.
    await return_to_queue(session, remapped)
    await _sync_schedules(session, folder, assets, aliases, changed)
    new_streams = await _sync_watchers(session, folder, kept, assets, changed, now)
    await session.flush()
    changed.openings = await sync_openings(session, new_streams, reading or Reading())
    changed.stream_digests |= changed.openings.opened
    if changed.dag_ids:
        announce(session, Signal.DAGS_CHANGED, *changed.dag_ids)
    if changed.stream_digests:
        announce(session, Signal.STREAMS_CHANGED, *changed.stream_digests)
    return changed


def _assign(row: object, **values: Any) -> bool:
    """Set what differs; return whether anything did. An equal value that is assigned would be written too."""
    different = {name: value for name, value in values.items() if getattr(row, name) != value}
    for name, value in different.items():
        setattr(row, name, value)
    return bool(different)


async def _sync_files(
    session: AsyncSession,
    folder: Folder,
    files: Mapping[str, ParsedFile | None],
    changed: Changed,
    now: datetime,
    removal_grace: timedelta,
    gone_for: Mapping[str, timedelta] | None,
) -> None:
    rows = {row.path: row for row in await session.scalars(select(DagFile))}
    for path in rows.keys() & files.keys():
        if _assign(rows[path], missing_since=None):
            changed.files.add(path)
    for path, file in files.items():
        if file is None:
            continue
        conflict = folder.conflicts.get(path)
        errors = [*file.errors, *([conflict] if conflict else [])]
        values = {
            "errors": [problem.to_json() for problem in errors],
            "warnings": [problem.to_json() for problem in file.warnings],
        }
        row = rows.get(path)
        if row is None:
            row = DagFile(path=path)
            session.add(row)
        # A parse that finds nothing new writes nothing, not even how long it took.
        if _assign(row, **values):
            _assign(row, parsed_at=now, parse_seconds=file.parse_seconds)
            changed.files.add(path)
    gone = {path: row.missing_since for path, row in rows.items() if path not in files}
    # A folder that could not be read was listed as a file, and can be read now.
    folders = {path for path in gone if not path.endswith(".py")}
    if missing := {path: since for path, since in gone.items() if path not in folders}:
        now = await database_now(session)
        changed.missing = judge_missing(missing, now=now, grace=removal_grace, gone_for=gone_for)
    for path, since in changed.missing.away.items():
        if _assign(rows[path], missing_since=since):
            changed.files.add(path)
    for path in changed.missing.deleted | folders:
        await session.delete(rows[path])
        changed.files.add(path)


async def _sync_assets(
    session: AsyncSession, folder: Folder, kept: Set[str], now: datetime
) -> dict[AssetKey, int]:
    """Return the ids of all assets, those of kept files included."""
    rows = {AssetKey(row.name, row.uri): row for row in await session.scalars(select(Asset))}
    await _rename_assets(session, rows, folder.assets.keys(), now)
    for key, (asset, path) in folder.assets.items():
        row = rows.get(key)
        if row is None:
            row = rows[key] = Asset(name=key.name, uri=key.uri, created_at=now)
            session.add(row)
        _assign(row, group=asset.group, extra=asset.extra, declared_in=path)
    for key in rows.keys() - folder.assets.keys():
        if rows[key].declared_in not in kept:
            _assign(rows[key], declared_in=None)
    await session.flush()
    return {key: row.id for key, row in rows.items()}


async def _rename_assets(
    session: AsyncSession, rows: dict[AssetKey, Asset], wanted: Iterable[AssetKey], now: datetime
) -> None:
    """Give rows of assets that are no longer defined to those that have taken over their name or their URI.

    Their events and watchers go with them. If the name went to one asset and the URI to another, the row that
    is left keeps its events under a name that no asset can have.
    """
    wanted = set(wanted)
    free = {key: row for key, row in rows.items() if key not in wanted}
    by_name = {key.name: key for key in free}
    by_uri = {key.uri: key for key in free}
    renamed: list[tuple[Asset, AssetKey]] = []
    for key in sorted(wanted - rows.keys()):
        touched = [by_name.get(key.name), by_uri.get(key.uri)]
        old = next((one for one in touched if one in free), None)
        if old is None:
            continue
        renamed.append((free.pop(old), key))
        del rows[old]
    taken = {key.name for _, key in renamed}, {key.uri for _, key in renamed}
    for old, row in free.items():
        if old.name in taken[0] or old.uri in taken[1]:
            retired = f"x-retired:{row.id}"
            renamed.append((row, AssetKey(retired, retired)))
            del rows[old]
    # Two assets may have swapped their URIs: in any order, single updates would violate the unique keys.
    for row, _ in renamed:
        _assign(row, name=f"x-renaming:{row.id}", uri=f"x-renaming:{row.id}")
    if renamed:
        await session.flush()
    for row, key in renamed:
        _assign(row, name=key.name, uri=key.uri)
        rows[key] = row


async def _sync_aliases(session: AsyncSession, names: Iterable[str]) -> dict[str, int]:
    rows = {row.name: row for row in await session.scalars(select(AssetAlias))}
    for name in sorted(set(names) - rows.keys()):
        rows[name] = AssetAlias(name=name)
        session.add(rows[name])
    await session.flush()
    return {name: row.id for name, row in rows.items()}


async def _sync_dags(
    session: AsyncSession, folder: Folder, kept: Set[str], changed: Changed, now: datetime
) -> list[str]:
    """Return the DAGs that were partitioned and whose keys, or when these are due, may be others now."""
    rows = {row.dag_id: row for row in await session.scalars(select(Dag))}
    rescheduled: list[Dag] = []
    remapped: list[str] = []
    for dag_id, (dag, path) in folder.dags.items():
        row = rows.get(dag_id)
        if row is None:
            row = Dag(dag_id=dag_id, is_paused=dag.is_paused_upon_creation)
            session.add(row)
        columns = {"is_stale": False, "path": path, **_columns(dag)}
        before = [getattr(row, name) for name in _WHEN_DUE]
        if "partitioned" in (row.schedule or {}) and any(
            getattr(row, name) != columns[name] for name in ("schedule", "quiet_period")
        ):
            remapped.append(dag_id)
        if _assign(row, **columns):
            row.updated_at = now
            changed.dag_ids.add(dag_id)
        if before != [columns[name] for name in _WHEN_DUE]:
            rescheduled.append(row)
    for dag_id in rows.keys() - folder.dags.keys():
        row = rows[dag_id]
        if row.path not in kept and not row.is_stale:
            row.is_stale = True
            row.updated_at = now
            changed.dag_ids.add(dag_id)
    await renew_due_moments(session, rescheduled)
    return remapped


def _columns(dag: ParsedDag) -> dict[str, Any]:
    return {
        "description": dag.description,
        "tags": dag.tags,
        "schedule": dag.schedule,
        "max_active_runs": dag.max_active_runs,
        "events_per_run": dag.events_per_run,
        "params": dag.params,
        "tasks": dag.tasks,
        "callbacks": dag.callbacks,
        "start_date": dag.start_date,
        "end_date": dag.end_date,
        "catchup": dag.catchup,
        "min_run_gap": dag.min_run_gap,
        "quiet_period": dag.quiet_period,
        "depends_on_past": dag.depends_on_past,
        "priority": dag.priority,
        "pools": ",".join(dag.pools) or None,
    }


_WHEN_DUE: Final = ("schedule", "start_date", "end_date", "catchup", "is_stale")
"""The columns that say when a timetable makes a DAG due."""


async def _sync_schedules(
    session: AsyncSession,
    folder: Folder,
    assets: Mapping[AssetKey, int],
    aliases: Mapping[str, int],
    changed: Changed,
) -> None:
    """Write for which assets and aliases events are queued. Those of a stale DAG stay, and queue nothing."""
    asset_rows = {
        (r.dag_id, r.asset_id): r for r in await session.scalars(select(DagScheduleAsset))
    }
    alias_rows = {
        (r.dag_id, r.alias_id): r for r in await session.scalars(select(DagScheduleAlias))
    }
    wanted_assets, wanted_aliases = set[tuple[str, int]](), set[tuple[str, int]]()
    for dag_id, (dag, _) in folder.dags.items():
        if dag.schedule is not None:
            condition = condition_in_json(dag.schedule)
            if condition is None:
                continue
            for asset in assets_of(condition):
                wanted_assets.add((dag_id, assets[AssetKey(asset.name, asset.uri)]))
            for alias in aliases_of(condition):
                wanted_aliases.add((dag_id, aliases[alias.name]))
    for dag_id, asset_id in sorted(wanted_assets - asset_rows.keys()):
        session.add(DagScheduleAsset(dag_id=dag_id, asset_id=asset_id))
        changed.dag_ids.add(dag_id)
    for dag_id, alias_id in sorted(wanted_aliases - alias_rows.keys()):
        session.add(DagScheduleAlias(dag_id=dag_id, alias_id=alias_id))
        changed.dag_ids.add(dag_id)
    gone: list[DagScheduleAsset | DagScheduleAlias] = [
        *(row for key, row in asset_rows.items() if key not in wanted_assets),
        *(row for key, row in alias_rows.items() if key not in wanted_aliases),
    ]
    for row in gone:
        if row.dag_id in folder.dags:
            await session.delete(row)
            changed.dag_ids.add(row.dag_id)


async def _sync_watchers(
    session: AsyncSession,
    folder: Folder,
    kept: Set[str],
    assets: Mapping[AssetKey, int],
    changed: Changed,
    now: datetime,
) -> set[str]:
    """Return the digests of the streams that are new."""

    def identity(key: WatcherKey) -> tuple[int, str] | None:
        asset_id = assets.get(AssetKey(key.asset_name, key.asset_uri))
        return None if asset_id is None else (asset_id, key.name)

    rows = {(row.asset_id, row.name): row for row in await session.scalars(select(Watcher))}
    triggers = {row.digest: row for row in await session.scalars(select(Trigger))}
    by_id = {row.id: row for row in triggers.values()}
    wanted = {identity(key): found for key, found in folder.watchers.items()}
    found = [watcher for watcher, _ in wanted.values()]
    new_streams = await _ensure_triggers(session, found, triggers, changed)
    for key, (watcher, path) in wanted.items():
        assert key is not None  # every watcher's asset is among the assets of its file
        trigger = triggers[watcher.trigger_digest]
        row = rows.get(key)
        if row is None:
            row = Watcher(asset_id=key[0], name=key[1], trigger_id=trigger.id, path=path)
            row.updated_at = now
            session.add(row)
            changed.stream_digests.add(trigger.stream_digest)
        elif row.trigger_id != trigger.id:
            changed.stream_digests.add(trigger.stream_digest)
            if row.trigger_id is not None:
                changed.stream_digests.add(by_id[row.trigger_id].stream_digest)
            # An error was that of the former arguments.
            _assign(row, trigger_id=trigger.id, state="waiting", error=None, updated_at=now)
        _assign(row, path=path)
        rows[key] = row
    spared = {identity(key) for key in folder.broken_watchers}
    for key in rows.keys() - wanted.keys():
        row = rows[key]
        if row.trigger_id is not None and row.path not in kept and key not in spared:
            changed.stream_digests.add(by_id[row.trigger_id].stream_digest)
            _assign(row, trigger_id=None, state="waiting", error=None, owner=None, updated_at=now)
    await session.flush()
    used = {row.trigger_id for row in rows.values() if row.trigger_id is not None}
    await _drop_unused(session, used, triggers, changed)
    if changed.stream_digests:
        await drop_positions_without_stream(session)
        await set_kept_aside_without_stream(session)
        await drop_states_without_watchers(session)
    return new_streams


async def _ensure_triggers(
    session: AsyncSession,
    watchers: Iterable[ParsedWatcher],
    triggers: dict[str, Trigger],
    changed: Changed,
) -> set[str]:
    """Return the digests of the streams that had to be made."""
    streams = set(await session.scalars(select(Stream.digest)))
    new_streams = set[str]()
    for watcher in watchers:
        if watcher.stream_digest not in streams:
            streams.add(watcher.stream_digest)
            new_streams.add(watcher.stream_digest)
            session.add(Stream(digest=watcher.stream_digest, key=watcher.stream_key, epoch=0))
    await session.flush()
    for watcher in watchers:
        row = triggers.get(watcher.trigger_digest)
        if row is None:
            row = triggers[watcher.trigger_digest] = Trigger(
                digest=watcher.trigger_digest,
                classpath=watcher.classpath,
                kwargs=watcher.kwargs,
                stream_digest=watcher.stream_digest,
                guarantee=watcher.guarantee,
            )
            session.add(row)
        elif row.stream_digest != watcher.stream_digest:
            # The class was changed, and derives another key from the same arguments.
            changed.stream_digests.update((row.stream_digest, watcher.stream_digest))
            row.stream_digest = watcher.stream_digest
    await session.flush()
    return new_streams


async def _drop_unused(
    session: AsyncSession, used: set[int], triggers: Mapping[str, Trigger], changed: Changed
) -> None:
    for row in triggers.values():
        if row.id not in used:
            await session.delete(row)
    await session.flush()
    # A stream with a lease is still being closed by its owner; a later sync deletes it. Checked again as it
    # is deleted, since its owner may be renewing the lease.
    is_unused = ~exists().where(Trigger.stream_digest == Stream.digest)
    may_go = and_(is_unused, is_free(await database_now(session)))
    if await session.scalar(select(Stream.digest).where(may_go).limit(1)):
        gone = await session.scalars(delete(Stream).where(may_go).returning(Stream.digest))
        changed.stream_digests.update(gone)
