"""Deletes old runs with their tasks and logs, and backfills whose runs are all gone."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from anyio import to_thread

from triggerer.errors import TriggererError
from triggerer.operations.cleaning.cleaned import Cleaned
from triggerer.operations.cleaning.logs import count_logs, delete_logs, paths_of, runs_of
from triggerer.operations.cleaning.pace import Pace
from triggerer.store.backfills.cleaning import delete_backfill, old_backfills
from triggerer.store.database.transactions import Database
from triggerer.store.runs.cleaning import (
    NeededRuns,
    OldRun,
    count_events,
    delete_runs,
    lock_old_runs,
    needed_runs,
    old_runs,
    open_backfills,
    shared_runs,
)

_RUNS: Final = 200
_EVENTS: Final = 2_000


async def clean_runs(
    database: Database, before: datetime, cleaned: Cleaned, pace: Pace
) -> set[int]:
    """Delete runs that ended before an instant, and backfills whose runs are all gone.

    A dry run deletes nothing, and returns the primary keys of the runs that would be deleted. Any other call returns an
    empty set.

    Raises:
        TriggererError: A log cannot be deleted, and its run stays. The other old runs are deleted nevertheless.
    """
    async with database.reading() as session:
        needed = await needed_runs(session, before)
        unfinished = await open_backfills(session)
    removed: set[int] = set()
    failed: TriggererError | None = None
    after = 0
    while True:
        async with database.reading() as session:
            old = await old_runs(session, before, after_pk=after, limit=_RUNS)
            if not old:
                break
            chosen = [run for run in old if not _stays(run, needed, unfinished)]
            shared = await shared_runs(session, [run.pk for run in chosen])
            chosen = [run for run in chosen if run.pk not in shared]
            events = await count_events(session, [run.pk for run in chosen])
        after = old[-1].pk
        cleaned.kept_runs += len(old) - len(chosen)
        await pace.step()
        for part in _parts(chosen, events):
            pks = {run.pk for run in part}
            if cleaned.dry_run:
                removed |= pks
                await _count_logs(part, cleaned)
            else:
                began = time.monotonic()
                async with database.transaction() as session:
                    pks = await lock_old_runs(session, pks, before)
                    # Delete the logs first: once a run's row is gone, nothing leads to the run's log.
                    stay, error = await _delete_logs(
                        [run for run in part if run.pk in pks], cleaned
                    )
                    pks -= stay
                    await delete_runs(session, pks)
                failed = failed or error
                await pace.give_way(began)
            cleaned.runs += len(pks)
    await _clean_backfills(database, before, cleaned, pace, needed, unfinished, removed)
    if failed is not None:
        raise failed
    return removed


def _stays(run: OldRun, needed: Mapping[str, NeededRuns], unfinished: Collection[int]) -> bool:
    # `needed` lacks a DAG that was created after `needed` was read. Keep the DAG's runs, because they may be needed.
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


async def _count_logs(runs: Sequence[OldRun], cleaned: Cleaned) -> None:
    paths = paths_of(runs)
    found = await to_thread.run_sync(count_logs, paths.values())
    cleaned.logs += found
    cleaned.logs_elsewhere += len(paths) - found


async def _delete_logs(
    runs: Sequence[OldRun], cleaned: Cleaned
) -> tuple[set[int], TriggererError | None]:
    """Delete the logs of these runs. Return the runs whose logs cannot be deleted, and the first error."""
    paths = paths_of(runs)
    deleted = await to_thread.run_sync(delete_logs, paths.values())
    cleaned.logs += deleted.number
    cleaned.logs_elsewhere += len(paths) - deleted.number - len(deleted.errors)
    return runs_of(deleted.errors, paths), deleted.first_error


async def _clean_backfills(
    database: Database,
    before: datetime,
    cleaned: Cleaned,
    pace: Pace,
    needed: Mapping[str, NeededRuns],
    unfinished: Collection[int],
    removed: Collection[int],
) -> None:
    async with database.reading() as session:
        found = await old_backfills(
            session, before, needed=needed, unfinished=unfinished, removed=removed
        )
    for pk in found:
        if cleaned.dry_run:
            cleaned.backfills += 1
            continue
        began = time.monotonic()
        async with database.transaction() as session:
            cleaned.backfills += await delete_backfill(session, pk)
        await pace.give_way(began)
