"""Deletes old asset events that nothing needs any longer."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from triggerer.operations.cleaning.cleaned import Cleaned
from triggerer.operations.cleaning.pace import Pace
from triggerer.operations.cleaning.sieve import Sieve
from triggerer.store.database.script import perform
from triggerer.store.database.transactions import Database
from triggerer.store.events.cleaning import (
    delete_events,
    highest_event,
    newest_events,
    read_window,
    release_keys,
)
from triggerer.store.watchers.cleaning import (
    UnsettledWatcher,
    events_of_parked,
    mark_cleaned,
    unsettled_watchers,
)

_EVENTS: Final = 2_000
# Events are read in windows, in the order of their ids. The search ends after this number of windows in a row without
# an old event. One window is not enough: after the clock was set back, later events have older timestamps.
_WINDOWS_BEYOND: Final = 50
NEVER: Final = datetime(1, 1, 1, tzinfo=UTC)
"""Stands for a limit that is None: no event or run is older."""


async def clean_events(
    database: Database,
    cleaned: Cleaned,
    pace: Pace,
    removed: Collection[int],
    *,
    now: datetime,
    quiet_since: datetime,
) -> None:
    """Delete old events that nothing needs.

    If a run was deleted but its event stays, the event gets another idempotency key (`release_keys`). If the event kept
    its key, a later run with the deleted run's id could not emit its own event.

    Args:
        removed: In a dry run, the primary keys of the runs that would have been deleted. Otherwise empty.
        quiet_since: A watcher's event stays if it is not older than this instant, see `OldEvent.is_quiet`.
    """
    limits = cleaned.before
    # Also read events that are too new to be deleted, up to the limit for runs. If such an event's run was deleted, the
    # event's key must be released.
    read_before = max(limits.events or NEVER, limits.runs or NEVER)
    async with database.reading() as session:
        sieve = Sieve(
            dict(await unsettled_watchers(session, now=now, quiet_since=quiet_since)),
            await newest_events(session),
            await events_of_parked(session),
        )
        highest = await highest_event(session)
    horizon = min(limits.events or NEVER, quiet_since)
    unsettled: dict[int, UnsettledWatcher] = {}
    after = beyond = 0
    while after < highest and beyond < _WINDOWS_BEYOND:
        script = read_window(
            after=after,
            highest=highest,
            size=_EVENTS,
            before=read_before,
            expired_before=limits.events or NEVER,
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
                    # After `mark_cleaned`, the store refuses replays that need the deleted events. If a watcher's
                    # replay was requested earlier, `mark_cleaned` returns the watcher, and the watcher's events stay.
                    sieve.add_marked(new, await mark_cleaned(session, new, horizon))
                    sifted = sieve.sift(window)
                event_ids = [event.id for event in sifted.unneeded]
                gone = await perform(session, delete_events(event_ids, window.divided))
                old = {event.id for event in window.old}
                left = window.orphans.intersection(old).difference(event_ids)
                await perform(session, release_keys(sorted(left)))
            await pace.give_way(began)
        await pace.step()
        cleaned.asset_events += gone
        cleaned.kept_events += sifted.kept
        unsettled |= sifted.unsettled
    cleaned.kept_watchers = list(unsettled.values())
