"""`triggerer runs`: what ran, what it said, and stopping it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli import options
from triggerer.cli.one_line import one_line
from triggerer.cli.output import (
    check_state,
    elapsed,
    print_answer,
    print_fields,
    print_json,
    text,
)
from triggerer.cli.session import read, write
from triggerer.cli.tables import Column, Kind, print_list, print_table
from triggerer.errors import TriggererError, UnknownRun

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.queries.listing.views import RunView, TaskRunView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
DagId = Annotated[str, typer.Argument(metavar="DAG_ID")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]


@app.command("list")
def list_(
    dag: options.Dag = None,
    asset: options.Asset = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List runs, newest first; --asset leaves those that were given an event of it."""
    from triggerer.domain.runs import RunState

    check_state(state, RunState)

    async def ask(session: AsyncSession) -> list[RunView]:
        from triggerer.store.queries.listing.dag_runs import list_runs

        return await list_runs(
            session, limit=limit, dag=dag, asset=asset, state=state, with_events=json
        )

    found = read(config, ask)
    someone_waits = any(row.waiting_for for row in found)
    has_keys = any(row.partition_key is not None for row in found)
    print_list(
        found,
        (
            "dag_id",
            "run_id",
            "state",
            Column("queued at", Kind.MINOR),
            Column("took", Kind.MINOR),
            Column("error", Kind.TEXT),
            *([Column("partition key", Kind.TEXT)] if has_keys else []),
            *([Column("waiting for", Kind.TEXT)] if someone_waits else []),
        ),
        lambda row: (
            row.dag_id,
            row.run_id,
            _state(row),
            row.queued_at,
            elapsed(row.started_at, row.ended_at),
            one_line(row.error),
            *([row.partition_key] if has_keys else []),
            *([one_line(row.waiting_for)] if someone_waits else []),
        ),
        json=json,
        empty="No runs.",
        limit=limit,
    )


@app.command()
def show(
    dag_id: DagId, run_id: RunId, json: options.Json = False, config: options.Config = None
) -> None:
    """Show one run: its times, tasks, events and error."""
    row, tasks = _find(config, dag_id, run_id)
    if json:
        from dataclasses import asdict

        print_json(asdict(row) | {"tasks": tasks})
        return
    print_fields(
        [
            ("dag_id", row.dag_id),
            ("run_id", row.run_id),
            ("partition key", row.partition_key),
            ("type", row.run_type),
            ("state", _state(row)),
            ("waiting for", row.waiting_for),
            ("waiting since", row.waiting_since),
            ("queued at", row.queued_at),
            ("started at", row.started_at),
            ("ended at", row.ended_at),
            ("took", elapsed(row.started_at, row.ended_at)),
            ("attempt", row.attempt),
            ("executor", row.executor),
            ("params", row.params or None),
            ("events", len(row.asset_event_ids)),
            ("exit code", row.exit_code),
            ("log", row.log_path),
            ("error", row.error),
        ]
    )
    if tasks:
        typer.echo()
        print_table(
            (
                "task",
                "state",
                Column("try", Kind.MINOR),
                Column("started at", Kind.MINOR),
                Column("took", Kind.MINOR),
                Column("error", Kind.TEXT),
            ),
            (
                (
                    task.task_id,
                    task.state,
                    task.try_number,
                    text(task.started_at),
                    elapsed(task.started_at, task.ended_at),
                    one_line(task.error),
                )
                for task in tasks
            ),
            empty="",
        )


@app.command()
def logs(
    dag_id: DagId, run_id: RunId, json: options.Json = False, config: options.Config = None
) -> None:
    """Print the log of a run: what its tasks printed and logged."""
    row, _ = _find(config, dag_id, run_id)
    if row.log_path is None:
        raise _no_log(row)
    try:
        with Path(row.log_path).open("rb") as log:
            if json:
                # One object, as of all commands: so the whole is in memory. Tasks may print any bytes.
                print_json(
                    {
                        "dag_id": row.dag_id,
                        "run_id": row.run_id,
                        "state": row.state,
                        "log_path": row.log_path,
                        "log": log.read().decode("utf-8", "replace"),
                    }
                )
            else:
                shutil.copyfileobj(log, sys.stdout.buffer)
                sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except FileNotFoundError as error:
        raise _no_log(row) from error
    except OSError as error:
        raise TriggererError(f"the log of {run_id!r} cannot be read: {error}") from error


@app.command()
def cancel(
    dag_id: DagId, run_id: RunId, json: options.Json = False, config: options.Config = None
) -> None:
    """Cancel a run: at once while it is queued; a running one is stopped by its executor."""

    async def change(session: AsyncSession) -> str:
        from triggerer.operations.runs import cancel_run

        return str(await cancel_run(session, dag_id, run_id))

    state = write(config, change)
    if json:
        print_json({"dag_id": dag_id, "run_id": run_id, "state": state})
    elif state == "running":
        typer.echo(f"{dag_id} {run_id}: its executor was told to stop it")
    else:
        typer.echo(f"{dag_id} {run_id}: cancelled")


@app.command()
def retry(
    dag_id: DagId, run_id: RunId, json: options.Json = False, config: options.Config = None
) -> None:
    """Queue a run that failed or was cancelled again; what has succeeded of it is left as it is."""

    async def change(session: AsyncSession) -> None:
        from triggerer.operations.runs import retry_run

        await retry_run(session, dag_id, run_id)

    write(config, change)
    print_answer(
        {"dag_id": dag_id, "run_id": run_id, "state": "queued"},
        f"{dag_id} {run_id}: queued again",
        json=json,
    )


@app.command()
def clear(
    dag_id: DagId,
    run_id: RunId,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASK_ID",
            help="Only this one, and what waits for it; may be repeated.",
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue a run that has ended again, as if it, or some of its tasks, had not run; they emit their events anew."""

    async def change(session: AsyncSession) -> list[str]:
        from triggerer.operations.runs import clear_run

        return await clear_run(session, dag_id, run_id, tasks=task or ())

    cleared = write(config, change)
    print_answer(
        {"dag_id": dag_id, "run_id": run_id, "state": "queued", "tasks": cleared},
        f"{dag_id} {run_id}: queued again, for {', '.join(cleared) or 'no task'}",
        json=json,
    )


def _find(config: Path | None, dag_id: str, run_id: str) -> tuple[RunView, list[TaskRunView]]:
    async def ask(session: AsyncSession) -> tuple[list[RunView], list[TaskRunView]]:
        from triggerer.store.queries.listing.dag_runs import list_runs, list_task_runs

        found = await list_runs(session, dag=dag_id, run_id=run_id, with_events=True)
        return found, await list_task_runs(session, dag_id, run_id)

    found, tasks = read(config, ask)
    if not found:
        raise UnknownRun(dag_id, run_id)
    return found[0], tasks


def _no_log(row: RunView) -> TriggererError:
    """Why there is no file: nobody has begun the run, somebody has on another machine, or it is gone."""
    from triggerer.domain.runs import RunState
    from triggerer.instance_ids import is_on_this_host

    run = f"the run {row.run_id!r}"
    if row.state == RunState.QUEUED:
        return TriggererError(f"{run} is queued: nothing is logged yet")
    # Claimed and not begun: the executor holds it until one of its workers is free.
    waits = TriggererError(f"{run} waits for its worker: nothing is logged yet")
    if row.state == RunState.RUNNING and row.started_at is None:
        return waits
    if row.executor is not None and not is_on_this_host(row.executor):
        may_wait = ", unless the run still waits for its worker" * (row.state == RunState.RUNNING)
        return TriggererError(
            f"there is no log of {run} on this machine: no file {row.log_path}",
            hint=f"it lies on the machine of the executor {row.executor}{may_wait}",
        )
    if row.state == RunState.RUNNING:
        return waits
    return TriggererError(f"{run} is {row.state} and has no log")


def _state(row: RunView) -> str:
    return f"{row.state} (waiting)" if row.waiting_for else row.state
