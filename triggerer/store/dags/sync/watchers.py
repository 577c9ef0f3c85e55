"""Updates the rows of watchers, and of the triggers and streams that serve them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from datetime import datetime

from sqlalchemy import and_, delete, exists, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.dag_files.merging import AssetKey, Folder
from triggerer.domain.dag_files.parsed import ParsedWatcher, WatcherKey
from triggerer.store.dags.sync.differences import Changed, assign
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Stream, Trigger, Watcher
from triggerer.store.streams.fences import lock_out_owners
from triggerer.store.streams.leases import is_free
from triggerer.store.streams.opening import Reading
from triggerer.store.streams.states import drop_states_without_watchers
from triggerer.store.watchers.positions import drop_positions_without_stream
from triggerer.store.watchers.restored import set_back_new_watchers
from triggerer.store.watchers.stored_backlog import park_strays


async def sync_watchers(
    session: AsyncSession,
    folder: Folder,
    kept: Set[str],
    assets: Mapping[AssetKey, int],
    changed: Changed,
    now: datetime,
    reading: Reading,
) -> set[str]:
    """Update the rows of watchers, triggers and streams to match the files; return the digests of new streams.

    Args:
        kept: The files whose stored definitions stay for now, for instance because the file is broken.
        assets: The ids of all assets.
        changed: This function adds the digests of changed streams to it, and sets its `is_restoring`.
        reading: How far the DAG files have been read.
    """

    def identity(key: WatcherKey) -> tuple[int, str] | None:
        asset_id = assets.get(AssetKey(key.asset_name, key.asset_uri))
        return None if asset_id is None else (asset_id, key.name)

    rows = {(row.asset_id, row.name): row for row in await session.scalars(select(Watcher))}
    triggers = {row.digest: row for row in await session.scalars(select(Trigger))}
    by_id = {row.id: row for row in triggers.values()}
    # No KeyError: a file that declares a watcher also declares the watcher's asset.
    wanted = {
        (assets[AssetKey(key.asset_name, key.asset_uri)], key.name): found
        for key, found in folder.watchers.items()
    }
    found = [watcher for watcher, _ in wanted.values()]
    spared = {identity(key) for key in folder.broken_watchers}
    gone = [
        (row, by_id[row.trigger_id])
        for key, row in rows.items()
        if key not in wanted
        and row.trigger_id is not None
        and row.path not in kept
        and key not in spared
    ]
    for key, (watcher, _) in wanted.items():
        row = rows.get(key)
        before = None if row is None or row.trigger_id is None else by_id[row.trigger_id]
        changed.stream_digests |= _affected(watcher, before, triggers.get(watcher.trigger_digest))
    changed.stream_digests.update(before.stream_digest for _, before in gone)
    renamed = await _renamed(session, found)
    changed.stream_digests |= renamed.keys()
    if changed.stream_digests:
        # Lock streams before other rows. All transactions keep this order, so that they cannot deadlock.
        await perform(session, lock_out_owners(changed.stream_digests))
    for digest, text in renamed.items():
        await session.execute(update(Stream).where(Stream.digest == digest).values(key=text))
    new_streams = await _ensure_triggers(session, found, triggers)
    added: list[Watcher] = []
    for key, (watcher, path) in wanted.items():
        trigger = triggers[watcher.trigger_digest]
        row = rows.get(key)
        if row is None:
            row = Watcher(asset_id=key[0], name=key[1], trigger_id=trigger.id, path=path)
            row.updated_at = now
            session.add(row)
            added.append(row)
        elif row.trigger_id != trigger.id:
            if row.trigger_id is None:
                added.append(row)
            # Clear the stored error, because it came from the trigger with the earlier arguments.
            assign(row, trigger_id=trigger.id, state="waiting", error=None, updated_at=now)
        assign(row, path=path)
        rows[key] = row
    for row, _ in gone:
        assign(row, trigger_id=None, state="waiting", error=None, owner=None, updated_at=now)
    await session.flush()
    used = {row.trigger_id for row in rows.values() if row.trigger_id is not None}
    await _drop_unused(session, used, triggers, changed)
    if changed.stream_digests:
        await drop_positions_without_stream(session)
        await park_strays(session)
        await drop_states_without_watchers(session)
    changed.is_restoring = await set_back_new_watchers(
        session, added, is_reading=reading.is_reading, now=now
    )
    return new_streams


def _affected(watcher: ParsedWatcher, before: Trigger | None, trigger: Trigger | None) -> set[str]:
    """Return the digests of a watcher's old and new stream; empty if its trigger does not change.

    Args:
        watcher: The definition in the DAG file.
        before: The watcher's trigger until now; None for a new watcher.
        trigger: The stored trigger that the watcher will have; None if it does not exist yet.
    """
    digests = {one.stream_digest for one in (before, trigger) if one is not None}
    is_as_it_was = before is trigger and digests == {watcher.stream_digest}
    return set() if is_as_it_was else {*digests, watcher.stream_digest}


async def _renamed(session: AsyncSession, watchers: Iterable[ParsedWatcher]) -> dict[str, str]:
    """Return the new readable stream keys by digest, for streams whose stored readable key is different.

    An update of a plugin or of the service may change the text of a key and keep its digest.
    """
    texts = _texts(watchers)
    stored = await session.execute(select(Stream.digest, Stream.key))
    return {
        row.digest: texts[row.digest] for row in stored if texts.get(row.digest, row.key) != row.key
    }


def _texts(watchers: Iterable[ParsedWatcher]) -> dict[str, str]:
    """Return the readable key of each stream, by digest.

    If watchers write a key in different ways, the last watcher wins.
    """
    return {watcher.stream_digest: watcher.stream_key for watcher in watchers}


async def _ensure_triggers(
    session: AsyncSession, watchers: Iterable[ParsedWatcher], triggers: dict[str, Trigger]
) -> set[str]:
    """Add missing triggers and streams; return the digests of the new streams."""
    watchers = list(watchers)
    texts = _texts(watchers)
    new_streams = texts.keys() - set(await session.scalars(select(Stream.digest)))
    session.add_all(Stream(digest=digest, key=texts[digest], epoch=0) for digest in new_streams)
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
            # The code of the trigger class has changed, and derives another stream key from equal arguments.
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
    # Do not delete a stream whose lease an instance still has, because the instance may be closing the stream. A later
    # update deletes the stream. The DELETE checks the lease again, because the owner may extend it at this moment.
    is_unused = ~exists().where(Trigger.stream_digest == Stream.digest)
    may_go = and_(is_unused, is_free(await database_now(session)))
    if await session.scalar(select(Stream.digest).where(may_go).limit(1)):
        gone = await session.scalars(delete(Stream).where(may_go).returning(Stream.digest))
        changed.stream_digests.update(gone)
