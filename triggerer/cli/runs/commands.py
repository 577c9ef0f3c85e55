"""The commands of `triggerer runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from triggerer.cli.runs.choice import DagId, Last, RunId, check_choice, chosen_run
from triggerer.cli.runs.logs import logs
from triggerer.cli.runs.repeat import clear, retry
from triggerer.cli.runs.resolve import resolve
from triggerer.cli.runs.show import show, state_of
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import check_state, elapsed, print_json
from triggerer.cli.terminal.session import read_list, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list
from triggerer.domain.text.one_line import one_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import RunView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    dag: options.Dag = None,
    asset: options.Asset = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List runs, newest first; with --asset, only runs that received an event of the asset."""
    from triggerer.domain.runs import RunState

    check_state(state, RunState)

    async def ask(session: AsyncSession) -> list[RunView]:
        from triggerer.store.runs.listing import list_runs

        return await list_runs(
            session, limit=limit, dag=dag, asset=asset, state=state, with_events=json
        )

    found = read_list(config, ask, dag=dag, asset=asset)
    has_waiting_runs = any(row.waiting_for for row in found)
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
            *([Column("waiting for", Kind.TEXT)] if has_waiting_runs else []),
        ),
        lambda row: (
            row.dag_id,
            row.run_id,
            state_of(row),
            row.queued_at,
            elapsed(row.started_at, row.ended_at),
            one_line(row.error),
            *([row.partition_key] if has_keys else []),
            *([one_line(row.waiting_for)] if has_waiting_runs else []),
        ),
        json=json,
        empty="No runs.",
        limit=limit,
    )


app.command()(show)
app.command()(logs)


@app.command()
def cancel(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Cancel a run. A queued run is cancelled at once; the executor of a running run stops it."""
    check_choice(run_id, last)

    async def change(session: AsyncSession) -> tuple[str, str]:
        from triggerer.operations.runs import cancel_run

        chosen = await chosen_run(session, dag_id, run_id)
        return chosen, str(await cancel_run(session, this_user(), dag_id, chosen))

    chosen, state = write(config, change)
    if json:
        print_json({"dag_id": dag_id, "run_id": chosen, "state": state})
    elif state == "running":
        typer.echo(f"{dag_id} {chosen}: its executor will stop it")
    else:
        typer.echo(f"{dag_id} {chosen}: cancelled")


app.command()(retry)
app.command()(clear)
app.command()(resolve)
