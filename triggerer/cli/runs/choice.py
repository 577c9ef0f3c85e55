"""Finds the run that a command is about: the run RUN_ID, or with `--last` the DAG's newest run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import wrong_use

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import RunView

DagId = options.DagId
RunId = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN_ID",
        help="Id of the run. Required unless --last is given.",
        autocompletion=completing.run_ids,
    ),
]
Last = Annotated[
    bool, typer.Option("--last", help="Use the newest run of the DAG; leave RUN_ID out.")
]


def check_choice(run_id: str | None, last: bool) -> None:
    """End with exit code 2 unless the user gave exactly one of RUN_ID and `--last`."""
    if run_id is None and not last:
        wrong_use("RUN_ID is missing; --last takes the newest run of the DAG")
    if run_id is not None and last:
        wrong_use(f"give RUN_ID or --last, not both: {run_id!r} and --last")


async def chosen_run(session: AsyncSession, dag_id: str, run_id: str | None) -> str:
    """Return `run_id`, or the id of the DAG's newest run if `run_id` is None.

    Raises:
        UnknownDag: `run_id` is None, and there is no such DAG.
        TriggererError: `run_id` is None, and the DAG has no run.
    """
    if run_id is not None:
        return run_id
    from triggerer.operations.runs import newest_run

    return await newest_run(session, dag_id)


async def find(
    session: AsyncSession, dag_id: str, run_id: str | None, *, with_events: bool = False
) -> RunView:
    """Return the run that the user chose, see `chosen_run`.

    Raises:
        UnknownRun: The DAG has no run of this id.
    """
    from triggerer.errors import UnknownRun
    from triggerer.store.runs.listing import list_runs

    chosen = await chosen_run(session, dag_id, run_id)
    found = await list_runs(session, dag=dag_id, run_id=chosen, with_events=with_events)
    if not found:
        raise UnknownRun(dag_id, chosen)
    return found[0]
