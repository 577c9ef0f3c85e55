"""Deletes old data: ended runs with their logs, and events that are no longer needed.

The services may run meanwhile. Each step deletes a few thousand rows in its own transaction. If a step fails, the
earlier steps are done, and a repeated call does the rest.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

from triggerer.domain.actors import Actor
from triggerer.domain.instants import readable
from triggerer.domain.run_logs import log_path
from triggerer.errors import TriggererError
from triggerer.operations.audit import Action, record
from triggerer.store.access.requests import delete_keys
from triggerer.store.audit.cleanings import add_cleaned
from triggerer.store.backfills.cleaning import delete_backfill, old_backfills
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.events.cleaning import (
    OldEvent,
    Window,
    delete_events,
    highest_event,
    newest_events,
    read_window,
    release_keys,
)
from triggerer.store.runs.cleaning import (
    NeededRuns,
    OldRun,
    count_events,
    delete_runs,
    needed_runs,
    old_runs,
    open_backfills,
    shared_runs,
)
from triggerer.store.watchers.cleaning import (
    UnsettledWatcher,
    events_of_parked,
    mark_cleaned,
    unsettled_watchers,
)

QUIET: Final = timedelta(hours=1)
"""A watcher's event is deleted only if it is at least this old, and if the watcher has been running for at least this
time. By then the broker has advanced past the event's message, so that the broker does not deliver it again."""

_RUNS: Final = 200
_EVENTS: Final = 2_000
# Events are read in windows, in the order of their ids. The search ends after this number of windows without an old
# event, because later events have higher ids. After a change of the clock, some old events may have higher ids than
# newer events. So the search does not end at the first such window.
_WINDOWS_BEYOND: Final = 50


@dataclass(slots=True)
class Cleaned:
    """The numbers of deleted rows and files. In a dry run: the numbers that would be deleted."""

    before: datetime
    dry_run: bool
    runs: int = 0
    asset_events: int = 0
    backfills: int = 0
    logs: int = 0
    """Deleted log files."""
    logs_elsewhere: int = 0
    """Logs of deleted runs that are not on this machine."""
    kept_runs: int = 0
    """Old runs that stay, because the scheduler, an unfinished backfill or a waiting event still needs them."""
    kept_events: Counter[str] = field(default_factory=Counter)
    """Old events that stay, by reason: `queued`, `in_run`, `emitted_by_run`, `newest`, `parked` or `watcher`."""
    kept_watchers: list[UnsettledWatcher] = field(default_factory=list)
    """Watchers whose old events stay, because the messages may be delivered again."""

    @property
    def deleted(self) -> dict[str, int]:
        """The numbers of deleted rows and logs by kind."""
        return {
            "runs": self.runs,
            "asset_events": self.asset_events,
            "backfills": self.backfills,
            "logs": self.logs,
        }


async def clean(
    database: Database,
    actor: Actor,
    before: datetime,
    *,
    ack_timeout: timedelta,
    dry_run: bool = False,
) -> Cleaned:
    """Delete the runs that ended before an instant, with their data, and older events that nothing needs any longer.

    An event stays if it waits for a DAG, belongs to a run that stays, or is the newest of its asset. It also stays if
    its message is stored or parked, or may be delivered again: the event's key then recognises the repeated message.
    The `Idempotency-Key` values of HTTP requests before the instant are deleted, too, but not counted.

    Args:
        ack_timeout: The longest time that a watcher has for a message.
        dry_run: True: count, and delete nothing.
    Raises:
        TriggererError: The instant is in the future. Or a log cannot be deleted, and its run stays.
        StoreError: The database is away or refuses a step. Earlier steps are done.
    """
    async with database.reading() as session:
        now = await database_now(session)
    if before > now:
        raise TriggererError(f"{readable(before)} is still to come: it is {readable(now)} now")
    cleaned = Cleaned(before, dry_run)
    if not dry_run:
        # Write the audit before the first step, because each step deletes for good.
        async with database.transaction() as session:
            await delete_keys(session, before)
            after = {"before": before.isoformat()}
            await record(session, actor, Action.DATABASE_CLEAN, "database", after=after)
    removed = await _clean_runs(database, cleaned)
    quiet_since = now - max(QUIET, 2 * ack_timeout)
    await _clean_events(database, cleaned, removed, now=now, quiet_since=quiet_since)
    if not dry_run:
        async with database.transaction() as session:
            await add_cleaned(session, cleaned.deleted)
    return cleaned


async def _clean_runs(database: Database, cleaned: Cleaned) -> set[int]:
    """Delete old runs. In a dry run, count and return the runs that would be deleted."""
    async with database.reading() as session:
        needed = await needed_runs(session, cleaned.before)
        unfinished = await open_backfills(session)
    removed: set[int] = set()
    after = 0
    while True:
        async with database.reading() as session:
            old = await old_runs(session, cleaned.before, after_pk=after, limit=_RUNS)
            if not old:
                break
            chosen = [run for run in old if not _stays(run, needed, unfinished)]
            shared = await shared_runs(session, [run.pk for run in chosen])
            chosen = [run for run in chosen if run.pk not in shared]
            events = await count_events(session, [run.pk for run in chosen])
        after = old[-1].pk
        cleaned.kept_runs += len(old) - len(chosen)
        for part in _parts(chosen, events):
            pks = {run.pk for run in part}
            if cleaned.dry_run:
                removed |= pks
                await _clean_logs(part, cleaned)
            else:
                began = time.monotonic()
                async with database.transaction() as session:
                    pks = await delete_runs(session, pks, cleaned.before)
                    # Delete the logs before the commit: once a run's row is gone, nothing leads to the run's log.
                    await _clean_logs([run for run in part if run.pk in pks], cleaned)
                await _give_way(began)
            cleaned.runs += len(pks)
    await _clean_backfills(database, cleaned, needed, unfinished, removed)
    return removed


def _stays(run: OldRun, needed: Mapping[str, NeededRuns], unfinished: Collection[int]) -> bool:
    # `of_dag` is None if the DAG was created after `needed` was read. The run stays, because it may be needed.
    of_dag = needed.get(run.dag_id)
    return run.backfill_id in unfinished or of_dag is None or of_dag.includes(run)


def _parts(runs: Sequence[OldRun], events: Mapping[int, int]) -> Iterator[list[OldRun]]:
    """Divide the runs into parts with at most `_EVENTS` events each. A run with more events is alone in its part."""
    part: list[OldRun] = []
    size = 0
    for run in runs:
        if part and size + events.get(run.pk, 0) > _EVENTS:
            yield part
            part, size = [], 0
        part.append(run)
        size += events.get(run.pk, 0)
    if part:
        yield part


async def _clean_logs(runs: Sequence[OldRun], cleaned: Cleaned) -> None:
    paths = [log_path(run.log_home, run.dag_id, run.run_id) for run in runs if run.log_home]
    found = await to_thread.run_sync(_count if cleaned.dry_run else delete_logs, paths)
    cleaned.logs += found
    cleaned.logs_elsewhere += len(paths) - found


def _count(paths: Sequence[str]) -> int:
    return sum(map(os.path.exists, paths))


def delete_logs(paths: Sequence[str]) -> int:
    """Delete the logs that are on this machine; return their number.

    Raises:
        TriggererError: A log cannot be deleted.
    """
    gone = 0
    for path in paths:
        try:
            Path(path).unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise TriggererError(
                f"the log {path} cannot be deleted: {error.strerror}",
                hint="repeat the command as the user of the executor",
            ) from error
        gone += 1
    return gone


async def _clean_backfills(
    database: Database,
    cleaned: Cleaned,
    needed: Mapping[str, NeededRuns],
    unfinished: Collection[int],
    removed: Collection[int],
) -> None:
    async with database.reading() as session:
        found = await old_backfills(
            session, cleaned.before, needed=needed, unfinished=unfinished, removed=removed
        )
    for pk in found:
        if cleaned.dry_run:
            cleaned.backfills += 1
            continue
        began = time.monotonic()
        async with database.transaction() as session:
            cleaned.backfills += await delete_backfill(session, pk)
        await _give_way(began)


async def _clean_events(
    database: Database,
    cleaned: Cleaned,
    removed: Collection[int],
    *,
    now: datetime,
    quiet_since: datetime,
) -> None:
    async with database.reading() as session:
        sieve = _Sieve(
            dict(await unsettled_watchers(session, now=now, quiet_since=quiet_since)),
            await newest_events(session),
            await events_of_parked(session),
        )
        highest = await highest_event(session)
    horizon = min(cleaned.before, quiet_since)
    unsettled: dict[int, UnsettledWatcher] = {}
    after = beyond = 0
    while after < highest and beyond < _WINDOWS_BEYOND:
        script = read_window(
            after=after,
            highest=highest,
            size=_EVENTS,
            before=cleaned.before,
            quiet_since=quiet_since,
            removed_runs=removed,
        )
        async with database.reading() as session:
            window = await perform(session, script)
        after = window.last
        beyond = 0 if window.old else beyond + 1
        sifted = sieve.sift(window)
        gone = len(sifted.unneeded)
        if (sifted.unneeded or window.orphans) and not cleaned.dry_run:
            began = time.monotonic()
            async with database.transaction() as session:
                if new := sifted.watcher_ids - sieve.marked:
                    # Mark the watchers before their events are deleted. `mark_cleaned` waits for transactions that
                    # request replays, and returns the watchers of these replays. The events of these watchers stay.
                    sieve.add_marked(new, await mark_cleaned(session, new, horizon))
                    sifted = sieve.sift(window)
                event_ids = [event.id for event in sifted.unneeded]
                gone = await perform(session, delete_events(event_ids, window.divided))
                old = {event.id for event in window.old}
                left = window.orphans.intersection(old).difference(event_ids)
                await perform(session, release_keys(sorted(left)))
            await _give_way(began)
        cleaned.asset_events += gone
        cleaned.kept_events += sifted.kept
        unsettled |= sifted.unsettled
    cleaned.kept_watchers = list(unsettled.values())


@dataclass(slots=True)
class _Sifted:
    unneeded: list[OldEvent] = field(default_factory=list)
    kept: Counter[str] = field(default_factory=Counter)
    unsettled: dict[int, UnsettledWatcher] = field(default_factory=dict)
    """By id, the watchers whose old events stay, because the messages may be delivered again."""

    @property
    def watcher_ids(self) -> set[int]:
        """The watchers of the events that nothing needs."""
        return {event.watcher_id for event in self.unneeded if event.watcher_id}


class _Sieve:
    """Separates events that nothing needs from events that must stay."""

    def __init__(
        self, unsettled: dict[int, UnsettledWatcher], newest: set[int], parked: set[int]
    ) -> None:
        self._unsettled = unsettled
        self._newest = newest
        self._parked = parked
        self.marked: set[int] = set()
        """The ids of watchers that `mark_cleaned` has marked: some of their events were deleted."""

    def add_marked(self, marked: set[int], unsettled: Mapping[int, UnsettledWatcher]) -> None:
        """Record which watchers are marked now. The events of the watchers in `unsettled` must stay nevertheless."""
        self.marked |= marked
        self._unsettled.update(unsettled)

    def sift(self, window: Window) -> _Sifted:
        """Separate the old events of a window into unneeded events and events that stay."""
        sifted = _Sifted()
        for event in window.old:
            if (reason := self._reason(event, window)) is None:
                sifted.unneeded.append(event)
            else:
                sifted.kept[reason] += 1
                if reason == "watcher" and event.watcher_id in self._unsettled:
                    sifted.unsettled[event.watcher_id] = self._unsettled[event.watcher_id]
        return sifted

    def _reason(self, event: OldEvent, window: Window) -> str | None:
        """Return the reason why an event stays. None: the event may be deleted."""
        if event.id in window.queued:
            return "queued"
        if event.id in window.in_runs:
            return "in_run"
        if event.id in window.emitted:
            return "emitted_by_run"
        if event.id in self._newest:
            return "newest"
        if event.id in self._parked:
            return "parked"
        if event.watcher_id and (event.watcher_id in self._unsettled or not event.is_quiet):
            return "watcher"
        return None


async def _give_way(began: float) -> None:
    """Sleep for as long as the last transaction took, because it blocked all other writers on SQLite."""
    await anyio.sleep(time.monotonic() - began)
