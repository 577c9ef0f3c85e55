"""`triggerer runs resolve`: a person confirms that unknown attempts are gone. The service cannot find this out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.runs.choice import DagId, Last, RunId, check_choice, chosen_run
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_answer, wrong_use
from triggerer.cli.terminal.session import this_user, write

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

Lost = Annotated[
    bool,
    typer.Option(
        "--lost",
        help="Say that the unknown attempts are gone: they do no work any longer, and never will.",
    ),
]


def resolve(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
    lost: Lost = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Record that the unknown attempts of a run are lost, so that the run need not wait for them.

    An attempt is unknown if its executor died, and its cluster or Spark Connect server does not answer. First check on
    the cluster or server that the attempt's application or session has ended. Otherwise two attempts may write the same
    output.
    """
    check_choice(run_id, last)
    if not lost:
        wrong_use("--lost is missing; it says that the unknown attempts are gone")

    async def change(session: AsyncSession) -> tuple[str, list[int]]:
        from triggerer.operations.runs import resolve_run

        chosen = await chosen_run(session, dag_id, run_id)
        return chosen, await resolve_run(session, this_user(), dag_id, chosen)

    chosen, attempts = write(config, change)
    numbers = ", ".join(map(str, attempts))
    named = f"attempt {numbers} is" if len(attempts) == 1 else f"attempts {numbers} are"
    print_answer(
        {"dag_id": dag_id, "run_id": chosen, "attempts": attempts, "state": "lost"},
        f"{dag_id} {chosen}: {named} lost",
        json=json,
    )
