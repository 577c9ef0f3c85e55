"""Runs a DAG once in the foreground, in a store of its own that is discarded afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
from anyio import to_thread

from triggerer.dag_processing import ParsedFolder, parse_once
from triggerer.domain.actors import CLI, Actor, Role
from triggerer.domain.run_logs import log_path
from triggerer.domain.runs import RunState
from triggerer.errors import ConfigurationError, DagFileError, UnknownDag
from triggerer.executor import Executor, ExecutorSettings
from triggerer.operations.emitting import emit_event
from triggerer.operations.triggering import trigger_dag
from triggerer.processes.instance_ids import new_instance_id
from triggerer.store.dags.sync import sync_folder
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.events.listing import list_asset_events
from triggerer.store.listing.views import AssetEventView, RunView, TaskRunView
from triggerer.store.runs.listing import find_run, list_runs, list_task_runs
from triggerer.store.runs.triggering_events import assign_events
from triggerer.store.schema.migrate import upgrade
from triggerer.worker.logs.reading import parts_of

_LOOK_EVERY: Final = timedelta(milliseconds=50)
_TRIAL: Final = Actor("test", Role.ADMIN, CLI)
"""The actor that the audit of the temporary store shows."""


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """An event that the run takes. `asset` is the name or the URI of the event's asset."""

    asset: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """The DAG to run, and the input of the run.

    Args:
        partition_key: The key of the run and of its events.
        spark: The section `[spark]` of the settings, as a mapping.
        pools: The names in `[pools]`. None: the DAG may use any pool.
    """

    dag_id: str
    dags_folder: Path
    events: Sequence[TrialEvent] = ()
    params: Mapping[str, Any] | None = None
    logical_date: datetime | None = None
    partition_key: str | None = None
    spark: Mapping[str, Any] | None = None
    allowed_modules: tuple[str, ...] = ()
    parse_timeout: timedelta = timedelta(seconds=30)
    pools: Collection[str] | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The run as it ended, and the events that its tasks emitted."""

    run: RunView
    tasks: list[TaskRunView]
    emitted: list[AssetEventView]


async def try_dag(trial: Trial, *, on_log: Callable[[bytes], None]) -> TrialResult:
    """Run a DAG once in a temporary store, as a worker would, and return the result.

    The store is deleted afterwards, but side effects of the tasks are real. No other DAG runs, even if the tasks emit
    events.

    Args:
        on_log: Called with new bytes of the run's log, while the run writes them.
    Raises:
        UnknownDag: No file defines the DAG.
        DagFileError: No readable file defines the DAG, and some file cannot be read.
        DagError: An event's asset is neither known nor a valid URI, or the timetable never produces `partition_key`.
        RowRefused: An event's extra, or the partition key, cannot be stored.
        ConfigurationError: There is no folder for temporary files.
    Cancellation: The worker is ended, and the temporary store is deleted.
    """
    with _temporary_folder() as folder:
        home = Path(await anyio.Path(folder).resolve())
        async with open_database(f"sqlite:///{home / 'test.db'}") as database:
            await upgrade(database)
            run_id = await _prepare(trial, database)
            await _execute(trial, database, home, run_id, on_log)
            async with database.reading() as session:
                (run,) = await list_runs(session, dag=trial.dag_id, run_id=run_id, with_events=True)
                tasks = await list_task_runs(session, trial.dag_id, run_id)
                emitted = await list_asset_events(session, dag=trial.dag_id, limit=0)
    return TrialResult(run, tasks, emitted[::-1])


def _temporary_folder() -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix="triggerer-test-")
    except OSError as error:
        raise ConfigurationError(
            f"there is no folder for temporary files: {error.strerror}",
            hint="set TMPDIR to a folder that this user can write to",
        ) from error


async def _prepare(trial: Trial, database: Database) -> str:
    """Store the folder's DAGs, the events and the run; return the run's id."""
    parsed = await parse_once(
        trial.dags_folder,
        allowed_modules=trial.allowed_modules,
        file_timeout=trial.parse_timeout,
        pools=trial.pools,
    )
    _refuse_unknown(trial.dag_id, parsed)
    async with database.transaction() as session:
        files = {file.path: file for file in parsed.files}
        await sync_folder(session, parsed.folder, files, now=await database_now(session))
        key = trial.partition_key
        events = [
            await emit_event(
                session, _TRIAL, one.asset, dict(one.extra), partition_key=key, create=True
            )
            for one in trial.events
        ]
        run_id = await trigger_dag(
            session,
            _TRIAL,
            trial.dag_id,
            params=trial.params,
            logical_date=trial.logical_date,
            partition_key=key,
        )
        run_pk = await find_run(session, trial.dag_id, run_id)
        assert run_pk is not None
        await assign_events(session, run_pk, [event["id"] for event in events])
    return run_id


def _refuse_unknown(dag_id: str, parsed: ParsedFolder) -> None:
    if dag_id in parsed.folder.dags:
        return
    if parsed.errors:
        first = parsed.errors[0]
        raise DagFileError(
            f"no file defines the DAG {dag_id!r}, and this one cannot be read: {first.reason}",
            file=first.file,
            line=first.line,
        )
    raise UnknownDag(dag_id).suggest(parsed.folder.dags)


async def _execute(
    trial: Trial, database: Database, home: Path, run_id: str, on_log: Callable[[bytes], None]
) -> None:
    executor = Executor(
        database,
        database.wakeups,
        instance_id=new_instance_id(),
        settings=ExecutorSettings(
            home=home,
            dags_folder=trial.dags_folder,
            workers=1,
            spark=trial.spark or {},
            prewarm=False,
        ),
    )
    log = _FileTail(Path(log_path(str(home), trial.dag_id, run_id)), on_log)
    with database.wakeups.subscribe(Signal.RUNS_ENDED) as ends:
        async with anyio.create_task_group() as tasks:
            await tasks.start(executor.run)
            while not await _has_ended(database, trial.dag_id, run_id):
                await ends.wait(_LOOK_EVERY)
                await log.read_on()
            tasks.cancel_scope.cancel()
    # The worker has ended, so the run's log is complete.
    await log.read_on()


async def _has_ended(database: Database, dag_id: str, run_id: str) -> bool:
    async with database.reading() as session:
        (run,) = await list_runs(session, dag=dag_id, run_id=run_id)
    return RunState(run.state).is_final


class _FileTail:
    """Reads a file as it grows. The file may not exist yet."""

    def __init__(self, path: Path, on_log: Callable[[bytes], None]) -> None:
        self._path = path
        self._on_log = on_log
        self._offset = 0

    async def read_on(self) -> None:
        more = await to_thread.run_sync(self._read)
        if more:
            self._on_log(more)

    def _read(self) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as file:
                found = b""
                for position, part in parts_of(file, self._offset):
                    found += part
                    self._offset = position + len(part)
                return found
        except FileNotFoundError:
            return b""
