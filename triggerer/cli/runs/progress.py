"""`triggerer runs show --follow`: prints how far a run is, until it has ended."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import typer

from triggerer.cli.runs.choice import find
from triggerer.cli.terminal.session import with_database
from triggerer.domain.runs import RunState, TaskState
from triggerer.domain.text.one_line import one_line

if TYPE_CHECKING:
    from triggerer.store.database.transactions import Database
    from triggerer.store.listing.views import RunView, TaskRunView

_ASK_EVERY_S: Final = 1.0


def follow_run(config: Path | None, dag_id: str, run_id: str | None) -> str:
    """Print a line for each change of the run's progress; return the run's id once the run has ended.

    Args:
        run_id: The run's id, or None for the newest run of the DAG.
    Raises:
        UnknownRun: The DAG has no such run, or the run was deleted.
    """
    found: list[str] = []

    async def work(database: Database) -> None:
        found.append(await _follow(database, dag_id, run_id))

    with_database(config, work)
    return found[0]


async def _follow(database: Database, dag_id: str, run_id: str | None) -> str:
    from triggerer.store.runs.listing import list_task_runs

    # `with_database` pauses the garbage collector, because most commands take a second. Following a run may take days.
    gc.enable()
    shown = None
    while True:
        async with database.reading() as session:
            row = await find(session, dag_id, run_id)
            tasks = await list_task_runs(session, row.dag_id, row.run_id)
        # Follow this run even if the DAG has a newer run at the next query.
        run_id = row.run_id
        if RunState(row.state).is_final:
            return run_id
        line = describe_progress(row, tasks)
        if line != shown:
            shown = line
            typer.echo(f"{datetime.now(UTC):%H:%M:%S}Z  {line}")
        await anyio.sleep(_ASK_EVERY_S)


def describe_progress(row: RunView, tasks: list[TaskRunView]) -> str:
    """Return a line about the run: its state, the task under way, Spark's progress, and the reason for a wait."""
    running = [task.task_id for task in tasks if task.state == TaskState.RUNNING]
    ended = sum(TaskState(task.state).is_final for task in tasks)
    parts = [row.state]
    if running:
        parts.append(f"task{'s' * (len(running) > 1)} {', '.join(running)}")
    if ended:
        parts.append(f"{ended} ended")
    if row.progress is not None:
        parts.append(str(row.progress))
    if row.waiting_for:
        parts.append(f"waits for {one_line(row.waiting_for)}")
    return ", ".join(parts)
