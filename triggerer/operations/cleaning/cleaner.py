"""Performs one cleaning: deletes the old data of all kinds, one kind after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

import anyio

from triggerer.domain.actors import Actor
from triggerer.domain.instants import readable
from triggerer.errors import MoveRefused, StoreError, TriggererError
from triggerer.operations.audit import Action, record
from triggerer.operations.cleaning.cleaned import Cleaned
from triggerer.operations.cleaning.events import clean_events
from triggerer.operations.cleaning.limits import Limits
from triggerer.operations.cleaning.logs import clean_logs
from triggerer.operations.cleaning.pace import Pace
from triggerer.operations.cleaning.records import clean_audit, clean_parked
from triggerer.operations.cleaning.runs import clean_runs
from triggerer.processes.instance_ids import new_instance_id, process_of
from triggerer.store.access.requests import delete_keys
from triggerer.store.audit.cleanings import (
    add_cleaned,
    begin_turn,
    end_turn,
    extend_turn,
    read_state,
)
from triggerer.store.database.transactions import Database, database_now

QUIET: Final = timedelta(hours=1)
"""A watcher's event is deleted only if the event is at least this old, and the watcher has been running for at least
this time. By then the broker has advanced past the event's message, and does not deliver the message again."""
_RELEASE_S: Final = 5.0


async def clean(
    database: Database,
    actor: Actor,
    limits: Limits,
    *,
    ack_timeout: timedelta,
    dry_run: bool = False,
) -> Cleaned:
    """Delete old runs with their data, old events that nothing needs any longer, old logs, and other old rows.

    An event stays in these cases:

    - The event waits for a DAG, belongs to a run that stays or was emitted by one, or is the newest event of its asset.
    - The event's message is stored or parked, or may be delivered again. Otherwise the message would create a second
      event.

    `Idempotency-Key` values of HTTP requests from before `limits.events` are deleted, too, but not counted.

    Args:
        ack_timeout: The setting `shared_stream_ack_timeout`.
        dry_run: True: count, and delete nothing.
    Raises:
        MoveRefused: Another cleaning is under way.
        TriggererError: A limit is in the future. Or a log cannot be deleted: its run stays, but other data is deleted.
        StoreError: The database is unavailable or refuses a transaction. The earlier transactions stay committed.
    """
    async with database.reading() as session:
        now = await database_now(session)
    if limits.latest is not None and limits.latest > now:
        raise TriggererError(
            f"{readable(limits.latest)} is still to come: it is {readable(now)} now"
        )
    cleaned = Cleaned(limits, dry_run)
    if dry_run:
        await _clean_all(database, cleaned, Pace(), now, ack_timeout)
        return cleaned
    async with _turn(database, cleaned) as pace:
        # Write the audit before the first step, because each step deletes for good.
        async with database.transaction() as session:
            await record(session, actor, Action.DATABASE_CLEAN, "database", after=limits.written())
        await _clean_all(database, cleaned, pace, now, ack_timeout)
    return cleaned


@asynccontextmanager
async def _turn(database: Database, cleaned: Cleaned) -> AsyncIterator[Pace]:
    """Allow no other cleaning to start during the block. At the end, store whether the cleaning succeeded.

    Raises:
        MoveRefused: Another cleaning is under way.
    """
    holder = new_instance_id()
    async with database.transaction() as session:
        if not await begin_turn(session, holder):
            state = await read_state(session)
            other = "another process" if state is None or not state.holder else state.holder
            raise MoveRefused(
                f"a cleaning is under way, by {process_of(other)}",
                hint="wait until it has ended: triggerer health shows it",
            )

    async def extend() -> None:
        async with database.transaction() as session:
            await extend_turn(session, holder)

    try:
        yield Pace(extend)
    except Exception as error:
        await _end(database, holder, cleaned, str(error))
        raise
    except BaseException:
        await _end(database, holder, cleaned, None)
        raise
    async with database.transaction() as session:
        await add_cleaned(session, cleaned.deleted)
        await end_turn(session, holder, deleted=cleaned.deleted)


async def _end(database: Database, holder: str, cleaned: Cleaned, error: str | None) -> None:
    """Store that the cleaning failed or was stopped, and what it deleted until then.

    If this cannot be stored, other cleanings must wait until this cleaning's claim expires.
    """
    with anyio.move_on_after(_RELEASE_S, shield=True):
        try:
            async with database.transaction() as session:
                await add_cleaned(session, cleaned.deleted)
                await end_turn(session, holder, error=error)
        except StoreError:
            return


async def _clean_all(
    database: Database, cleaned: Cleaned, pace: Pace, now: datetime, ack_timeout: timedelta
) -> None:
    """Delete each kind of data. If a log cannot be deleted, go on with the next kind, and raise at the end."""
    limits = cleaned.before
    removed = set[int]()
    failed: TriggererError | None = None
    if limits.runs is not None:
        try:
            removed = await clean_runs(database, limits.runs, cleaned, pace)
        except StoreError:
            raise
        except TriggererError as error:
            failed = error
    if limits.logs is not None:
        try:
            await clean_logs(database, limits.logs, cleaned, pace)
        except StoreError:
            raise
        except TriggererError as error:
            failed = failed or error
    quiet_since = now - max(QUIET, 2 * ack_timeout)
    if limits.events is not None or limits.runs is not None:
        await clean_events(database, cleaned, pace, removed, now=now, quiet_since=quiet_since)
    await _clean_records(database, cleaned, pace)
    if failed is not None:
        raise failed


async def _clean_records(database: Database, cleaned: Cleaned, pace: Pace) -> None:
    limits = cleaned.before
    if limits.events is not None and not cleaned.dry_run:
        async with database.transaction() as session:
            await delete_keys(session, limits.events)
    if limits.audit is not None:
        await clean_audit(database, limits.audit, cleaned, pace)
    if limits.parked is not None:
        await clean_parked(database, limits.parked, cleaned, pace)
