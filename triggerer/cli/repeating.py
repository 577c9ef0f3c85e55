"""`triggerer runs retry` and `triggerer runs clear`: runs that have ended are queued again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli import options
from triggerer.cli.output import print_answer
from triggerer.cli.run_choice import DagId, Last, RunId, check_choice, chosen_run
from triggerer.cli.session import write

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


def retry(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue a run that failed or was cancelled again; what has succeeded of it is left as it is."""
    check_choice(run_id, last)

    async def change(session: AsyncSession) -> str:
        from triggerer.operations.runs import retry_run

        chosen = await chosen_run(session, dag_id, run_id)
        await retry_run(session, dag_id, chosen)
        return chosen

    chosen = write(config, change)
    print_answer(
        {"dag_id": dag_id, "run_id": chosen, "state": "queued"},
        f"{dag_id} {chosen}: queued again",
        json=json,
    )


def clear(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
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
    """Queue a run that has ended again, as if it, or some of its tasks, had not run; they emit their events again."""
    check_choice(run_id, last)

    async def change(session: AsyncSession) -> tuple[str, list[str]]:
        from triggerer.operations.runs import clear_run

        chosen = await chosen_run(session, dag_id, run_id)
        return chosen, await clear_run(session, dag_id, chosen, tasks=task or ())

    chosen, cleared = write(config, change)
    print_answer(
        {"dag_id": dag_id, "run_id": chosen, "state": "queued", "tasks": cleared},
        f"{dag_id} {chosen}: queued again, for {', '.join(cleared) or 'no task'}",
        json=json,
    )
