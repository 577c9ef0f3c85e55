"""Deletes an undeclared asset with its events, or a stale DAG with its runs.

The service may run during a deletion. A deletion has many short transactions, and each transaction checks again that
the asset or DAG is unused. If a transaction fails, repeat the command: it deletes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from anyio import to_thread
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.domain.run_logs import log_path
from triggerer.errors import MoveRefused, UnknownAsset, UnknownDag
from triggerer.operations.audit import Action, record
from triggerer.operations.cleaning import delete_logs
from triggerer.store.dags import deletion as dags
from triggerer.store.dags.deletion import DagUse
from triggerer.store.dags.sync import lock_folder
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.signals import Signal, announce
from triggerer.store.events import asset_deletion as assets
from triggerer.store.events.asset_deletion import AssetUse
from triggerer.store.events.queued import empty_queues

_EVENTS: Final = 2_000
_RUNS: Final = 200


@dataclass(slots=True)
class DeletedAsset:
    """A deleted asset, and the number of rows deleted with it."""

    asset_name: str
    asset_uri: str
    asset_events: int = 0
    queued_events: int = 0
    """Deleted entries in the queues of DAGs."""


@dataclass(slots=True)
class DeletedDag:
    """A deleted DAG, and the number of runs and logs deleted with it."""

    dag_id: str
    runs: int = 0
    logs: int = 0
    """Deleted log files."""
    logs_elsewhere: int = 0
    """Deleted runs whose logs are not on this machine."""


async def delete_asset(
    database: Database, actor: Actor, asset: str, *, with_queued: bool = False
) -> DeletedAsset:
    """Delete an asset that no DAG file declares, with its events.

    Runs that have ended stay, but no longer show the asset's events as triggering events.

    Args:
        asset: The asset's name or URI.
        with_queued: True: delete the asset even if its events wait for DAGs. No run will take these events.
    Raises:
        UnknownAsset: There is no such asset.
        MoveRefused: The asset is in use: by a file, a waiting DAG, a running watcher, an unfinished
            run, or the stored or parked messages of a watcher. Or events of the asset wait for
            DAGs, and `with_queued` is False.
    """
    async with database.reading() as session:
        asset_id, deleted = await _find_asset(session, asset)
    is_first = True
    while True:
        async with database.transaction() as session:
            await lock_folder(session)
            use = await assets.use_of_asset(session, asset_id)
            if use is None:
                return deleted
            _refuse_used(deleted, use, with_queued=with_queued)
            if is_first:
                # Write the audit with the first step, because each step deletes for good.
                before = {"uri": deleted.asset_uri, "queued_events": use.queued}
                await record(session, actor, Action.ASSET_DELETE, deleted.asset_name, before=before)
            if use.queued:
                deleted.queued_events += await empty_queues(session, assets=[asset_id])
            count = await assets.delete_some_events(session, asset_id, limit=_EVENTS)
            if count < _EVENTS:
                await assets.delete_asset_row(session, asset_id)
        is_first = False
        deleted.asset_events += count


async def _find_asset(session: AsyncSession, asset: str) -> tuple[int, DeletedAsset]:
    found = await assets.find_asset(session, asset)
    if found is None:
        raise UnknownAsset(asset)
    asset_id, name, uri = found
    return asset_id, DeletedAsset(name, uri)


def _refuse_used(asset: DeletedAsset, use: AssetUse, *, with_queued: bool) -> None:
    what, name = f"the asset {asset.asset_name!r}", asset.asset_name
    if use.declared_in is not None:
        raise MoveRefused(
            f"{what} is declared in {use.declared_in}", hint="delete it from that file first"
        )
    if use.dag_id is not None:
        raise MoveRefused(
            f"the DAG {use.dag_id!r} waits for {what}",
            hint=f"triggerer dags show {use.dag_id} names its file",
        )
    if use.watcher is not None:
        raise MoveRefused(
            f"the watcher {use.watcher!r} of {what} still runs",
            hint=f"triggerer watchers show {name}/{use.watcher} shows it",
        )
    if use.run is not None:
        dag_id, run_id = use.run
        raise MoveRefused(
            f"the run {run_id} of {dag_id!r} has events of {what}, and has not ended",
            hint=f"wait for it, or triggerer runs cancel {dag_id} {run_id}",
        )
    if use.parked is not None:
        watcher, count = use.parked
        raise MoveRefused(
            f"the watcher {watcher!r} of {what} has parked messages: {count}",
            hint=f"triggerer watchers parked discard --watcher {name}/{watcher}",
        )
    if use.queued and not with_queued:
        raise MoveRefused(
            f"events of {what} wait for DAGs: {use.queued} in their queues",
            hint="triggerer assets queued list --asset shows them; --with-queued deletes them too",
        )


async def check_deletable(session: AsyncSession, dag_id: str) -> DagUse:
    """Check that a DAG can be deleted, and return its file and the number of its runs.

    Raises:
        UnknownDag: There is no such DAG.
        MoveRefused: The DAG is not stale, or has an unfinished run.
    """
    use = await dags.use_of_dag(session, dag_id)
    if use is None:
        raise UnknownDag(dag_id)
    if not use.is_stale:
        raise MoveRefused(
            f"the DAG {dag_id!r} is not stale: {use.path} defines it",
            hint=f"delete it from its file first, or triggerer dags pause {dag_id}",
        )
    if use.busy_run is not None:
        raise MoveRefused(
            f"the run {use.busy_run} of {dag_id!r} has not ended",
            hint=f"wait for it, or triggerer runs cancel {dag_id} {use.busy_run}",
        )
    return use


async def delete_dag(database: Database, actor: Actor, dag_id: str) -> DeletedDag:
    """Delete a stale DAG, with its runs, their logs, its queue and its backfills. The events of its tasks stay.

    Raises:
        UnknownDag: There is no such DAG.
        MoveRefused: The DAG is not stale, or has an unfinished run.
        TriggererError: A log cannot be deleted, so its run stays.
    """
    deleted = DeletedDag(dag_id)
    after: int | None = 0
    is_first = True
    while True:
        async with database.transaction() as session:
            await lock_folder(session)
            use = await check_deletable(session, dag_id)
            if is_first:
                before = {"path": use.path, "runs": use.runs}
                await record(session, actor, Action.DAG_DELETE, dag_id, before=before)
                is_first = False
            if after is not None:
                after = await dags.release_some_keys(session, dag_id, after=after, limit=_EVENTS)
                continue
            gone = await dags.delete_some_runs(session, dag_id, limit=_RUNS)
            paths = [log_path(home, dag_id, run_id) for run_id, home in gone if home]
            # Delete the logs before the commit: once a run's row is gone, nothing leads to the run's log.
            logs = await to_thread.run_sync(delete_logs, paths)
            if logs.first_error is not None:
                raise logs.first_error
            if is_last := len(gone) < _RUNS:
                await dags.delete_dag_row(session, dag_id)
                announce(session, Signal.DAGS_CHANGED, dag_id)
        deleted.runs += len(gone)
        deleted.logs += logs.number
        deleted.logs_elsewhere += len(paths) - logs.number
        if is_last:
            return deleted
