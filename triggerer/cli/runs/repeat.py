"""`triggerer runs retry` and `triggerer runs clear`: queue ended runs again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.runs.choice import Last, RunId, check_choice, chosen_run
from triggerer.cli.runs.repeat_many import ManyRuns, repeat_many
from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import print_answer, wrong_use
from triggerer.cli.terminal.session import this_user, write

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

DagId = Annotated[str | None, typer.Argument(metavar="DAG_ID", autocompletion=completing.dag_ids)]
State = Annotated[
    str | None, typer.Option("--state", help="Choose many runs: runs that ended in this state.")
]
Dag = Annotated[
    str | None,
    typer.Option(
        "--dag",
        metavar="DAG_ID",
        help="Choose many runs: runs of this DAG.",
        autocompletion=completing.dag_ids,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Choose many runs: the time in the run id is this time or later, for example 2026-03-01.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TIME",
        help="Choose many runs: the time in the run id is this time or earlier.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="For many runs: show what would be queued, and queue nothing."),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", "-y", help="For many runs: do not ask for confirmation on a terminal."),
]


def retry(
    dag_id: DagId = None,
    run_id: RunId = None,
    last: Last = False,
    dag: Dag = None,
    state: State = None,
    from_: From = None,
    to: To = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue a failed or cancelled run again, or many runs.

    A task that succeeded is repeated only if another task needs its result.

    Choose one run by DAG_ID with either RUN_ID or --last. Choose many runs by at least one of --dag, --state, --from
    and --to.
    """
    many = ManyRuns(dag=dag, state=state, from_=from_, to=to, dry_run=dry_run, yes=yes, json=json)
    if many.are_chosen(run_id, last):
        repeat_many(config, many, dag_id, states=("failed", "cancelled"))
        return
    chosen = _retry_one(config, _known(dag_id), run_id, last)
    print_answer(
        {"dag_id": dag_id, "run_id": chosen, "state": "queued"},
        f"{dag_id} {chosen}: queued again",
        json=json,
    )


def clear(
    dag_id: DagId = None,
    run_id: RunId = None,
    last: Last = False,
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="TASK_ID",
            help="Repeat only this task and the tasks after it. Can be given several times.",
        ),
    ] = None,
    dag: Dag = None,
    state: State = None,
    from_: From = None,
    to: To = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue an ended run again from the start, or many runs. The tasks emit their asset events again.

    With --task, only this task and the tasks after it are repeated. Choose one run by DAG_ID with either RUN_ID or
    --last. Choose many runs by at least one of --dag, --state, --from and --to.
    """
    many = ManyRuns(dag=dag, state=state, from_=from_, to=to, dry_run=dry_run, yes=yes, json=json)
    if many.are_chosen(run_id, last):
        states = ("success", "failed", "cancelled")
        repeat_many(config, many, dag_id, states=states, clear=True, tasks=task or ())
        return
    chosen, cleared = _clear_one(config, _known(dag_id), run_id, last, task or ())
    print_answer(
        {"dag_id": dag_id, "run_id": chosen, "state": "queued", "tasks": cleared},
        f"{dag_id} {chosen}: queued again, for {', '.join(cleared) or 'no task'}",
        json=json,
    )


def _known(dag_id: str | None) -> str:
    if dag_id is None:
        wrong_use(
            "DAG_ID and RUN_ID, or DAG_ID and --last, are needed; or --dag, --state, --from or --to "
            "for many runs"
        )
    return dag_id


def _retry_one(config: Path | None, dag_id: str, run_id: str | None, last: bool) -> str:
    check_choice(run_id, last)

    async def change(session: AsyncSession) -> str:
        from triggerer.operations.runs import retry_run

        chosen = await chosen_run(session, dag_id, run_id)
        await retry_run(session, this_user(), dag_id, chosen)
        return chosen

    return write(config, change)


def _clear_one(
    config: Path | None, dag_id: str, run_id: str | None, last: bool, tasks: Sequence[str]
) -> tuple[str, list[str]]:
    check_choice(run_id, last)

    async def change(session: AsyncSession) -> tuple[str, list[str]]:
        from triggerer.operations.runs import clear_run

        chosen = await chosen_run(session, dag_id, run_id)
        return chosen, await clear_run(session, this_user(), dag_id, chosen, tasks=tasks)

    return write(config, change)
