"""Updates the store to match a folder of DAG files, as it was last read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.dag_files.merging import AssetKey, Folder, Incumbents
from triggerer.domain.dag_files.missing_files import judge_missing
from triggerer.domain.dag_files.parsed import ParsedFile, WatcherKey
from triggerer.store.dags.sync.assets import sync_aliases, sync_assets
from triggerer.store.dags.sync.dags import sync_dags, sync_schedules
from triggerer.store.dags.sync.differences import Changed, assign
from triggerer.store.dags.sync.watchers import sync_watchers
from triggerer.store.database.transactions import database_now
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.partitions.remapping import return_to_queue
from triggerer.store.runs.held import release_runs
from triggerer.store.schema.models import Asset, Dag, DagFile, Watcher
from triggerer.store.streams.opening import Reading, sync_openings

# Two DAG processors on one database take turns under this lock. The number is arbitrary, and unique in the database.
_LOCK: Final = 0x7472_6967


async def read_incumbents(session: AsyncSession) -> Incumbents:
    """Lock the stored definitions until the transaction ends, and return which file each definition comes from."""
    await lock_folder(session)
    return await show_incumbents(session)


async def lock_folder(session: AsyncSession) -> None:
    """Lock the stored definitions until this transaction ends. SQLite needs no lock: it has one writer at a time."""
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(select(func.pg_advisory_xact_lock(_LOCK)))


async def show_incumbents(session: AsyncSession) -> Incumbents:
    """Return all stored files, and which file each DAG (unless stale), declared asset and watcher comes from."""
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
    reread: Collection[str] = (),
) -> Changed:
    """Update the store to match the folder, in the caller's transaction. Write only differences, and announce them.

    - The definitions of a file stay if the file is broken, contradicts another file, is not parsed yet, or has been
      missing for less than `removal_grace`.
    - The DAGs of a deleted file become stale. The file's watchers keep their rows, but lose their triggers.
    - A trigger without watchers is deleted. A stream without triggers is deleted once no instance has its lease.
    - `is_paused` is set only when a DAG gets its row. Later changes of the file do not pause or unpause the DAG.
    - A watcher keeps its row when its trigger changes. An asset keeps its row when its name or its URI changes.

    Args:
        folder: The merged definitions of all files.
        files: Every file of the folder, by path; None if the file is not parsed yet.
        now: The time to store with changed rows.
        gone_for: How long ago missing files were last seen, by path, if known.
        reading: How far the files have been read. New streams stay closed while files are unread. None: all files have
            been read.
        reread: Files that were read since the last call. Runs that wait because a worker could not load their file are
            released, to be tried again.
    """
    changed = Changed()
    await _sync_files(session, folder, files, changed, now, removal_grace, gone_for)
    kept = changed.missing.away.keys() | {
        path
        for path, file in files.items()
        if file is None or file.is_broken or path in folder.conflicts
    }
    assets = await sync_assets(session, folder, kept, now)
    aliases = await sync_aliases(session, folder.aliases)
    remapped = await sync_dags(session, folder, kept, changed, now)
    await session.flush()
    await _announce_broken_files(session, changed)
    if released := await release_runs(session, reread):
        announce(session, Signal.RUNS_QUEUED, *released)
    # `return_to_queue` needs a lock on the DAGs' rows. `sync_dags` has written these rows, so this transaction has the
    # lock.
    await return_to_queue(session, remapped)
    await sync_schedules(session, folder, assets, aliases, changed)
    reading = reading or Reading()
    new_streams = await sync_watchers(session, folder, kept, assets, changed, now, reading)
    await session.flush()
    changed.openings = await sync_openings(session, new_streams, reading)
    changed.stream_digests |= changed.openings.opened
    if changed.dag_ids:
        announce(session, Signal.DAGS_CHANGED, *changed.dag_ids)
    if changed.stream_digests:
        announce(session, Signal.STREAMS_CHANGED, *changed.stream_digests)
    return changed


async def _announce_broken_files(session: AsyncSession, changed: Changed) -> None:
    """Add the DAGs of repaired and broken files to the changed DAGs, so that executors release or hold their runs."""
    if changed.repaired_or_broken:
        query = select(Dag.dag_id).where(Dag.path.in_(changed.repaired_or_broken))
        changed.dag_ids.update(await session.scalars(query))


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
        if assign(rows[path], missing_since=None):
            changed.files.add(path)
    for path, file in files.items():
        if file is None:
            continue
        conflict = folder.conflicts.get(path)
        errors = [*file.errors, *([conflict] if conflict else [])]
        values = {
            "errors": [problem.to_json() for problem in errors],
            "warnings": [problem.to_json() for problem in file.warnings],
            "is_broken": file.is_broken,
        }
        row = rows.get(path)
        if row is None:
            row = DagFile(path=path)
            session.add(row)
        if bool(row.is_broken) != file.is_broken:
            changed.repaired_or_broken.add(path)
        # A parse that finds no difference writes nothing, not even its duration.
        if assign(row, **values):
            assign(row, parsed_at=now, parse_seconds=file.parse_seconds)
            changed.files.add(path)
            changed.errors += errors
            changed.warnings += file.warnings
    gone = {path: row.missing_since for path, row in rows.items() if path not in files}
    # A subfolder that cannot be read also has a row, for its error. The row is deleted once the subfolder is readable
    # or gone.
    folders = {path for path in gone if not path.endswith(".py")}
    if missing := {path: since for path, since in gone.items() if path not in folders}:
        now = await database_now(session)
        changed.missing = judge_missing(missing, now=now, grace=removal_grace, gone_for=gone_for)
    for path, since in changed.missing.away.items():
        if assign(rows[path], missing_since=since):
            changed.files.add(path)
    for path in changed.missing.deleted | folders:
        await session.delete(rows[path])
        changed.files.add(path)
