"""`triggerer dags test`: one run of a DAG in the foreground, of which nothing is kept."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.one_line import one_line
from triggerer.cli.terminal.output import elapsed, print_json, text, wrong_use
from triggerer.cli.terminal.session import folder_of, settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from triggerer.operations.trial import GivenEvent, TrialResult

Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="ASSET[=JSON]",
        help="An event of this asset (name or URI) for the run; may be repeated.",
    ),
]


def try_(
    dag_id: options.DagId,
    event: Events = None,
    logical_date: options.LogicalDate = None,
    partition_key: Annotated[
        str | None,
        typer.Option(
            "--partition-key", metavar="KEY", help="The run's own, and that of its events."
        ),
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", metavar="JSON", help="An object; wins over the DAG's.")
    ] = None,
    dags_folder: options.DagsFolder = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Run a DAG once, here and now, in a store that is thrown away; exit code 1 if the run fails.

    It prints the run's log as it comes, and then what came of it. The service, if one runs, knows nothing of it. What
    the tasks do elsewhere, they do.
    """
    events = [_parse_event(one) for one in event or ()]
    values = options.parse_object(params, "--params")
    date = options.parse_instant(logical_date, "--logical-date")
    from dataclasses import asdict, replace

    import anyio

    from triggerer.observability.logging_setup import set_up_logging_when_used
    from triggerer.operations.connections import share_connections
    from triggerer.operations.trial import Trial, try_dag

    settings = settings_for(config, dags_folder=dags_folder)
    set_up_logging_when_used(replace(settings.core, log_level="warning", log_format="console"))
    share_connections(settings)
    trial = Trial(
        dag_id,
        folder_of(settings),
        events=events,
        params=values,
        logical_date=date,
        partition_key=partition_key,
        spark=asdict(settings.spark),
        allowed_modules=settings.core.allowed_trigger_modules,
        parse_timeout=settings.dag_processor.parse_timeout,
        pools=settings.pools,
    )
    log: list[bytes] = []

    async def run() -> TrialResult:
        return await try_dag(trial, on_log=log.append if json else _print_log)

    result = anyio.run(run)
    if json:
        told = b"".join(log).decode("utf-8", "replace")
        print_json(
            asdict(result.run) | {"tasks": result.tasks, "emitted": result.emitted, "log": told}
        )
    else:
        _print(result)
    if result.run.state != "success":
        raise typer.Exit(1)


def _parse_event(given: str) -> GivenEvent:
    import orjson

    from triggerer.operations.trial import GivenEvent

    # A URI may hold a "=": the JSON is what stands after the first one behind which there is JSON.
    for at, sign in enumerate(given):
        if sign != "=":
            continue
        try:
            orjson.loads(given[at + 1 :])
        except orjson.JSONDecodeError:
            continue
        return GivenEvent(given[:at], options.parse_extra(given[at + 1 :], "--event"))
    if given.endswith("}"):
        wrong_use(f"--event {given}: what stands after the = is not JSON")
    return GivenEvent(given, {})


def _print_log(more: bytes) -> None:
    sys.stdout.buffer.write(more)
    sys.stdout.buffer.flush()


def _print(result: TrialResult) -> None:
    typer.echo()
    print_table(
        ("task", "state", "try", "took", Column("error", Kind.TEXT)),
        (
            (
                task.task_id,
                task.state,
                task.try_number,
                elapsed(task.started_at, task.ended_at),
                one_line(task.error),
            )
            for task in result.tasks
        ),
        empty="No task was run.",
    )
    for event in result.emitted:
        typer.echo(f"{event.source_task_id} emitted {event.asset_name} {text(event.extra)}")
    typer.echo(f"{result.run.dag_id}: {result.run.state}")
    if result.run.error is not None and not result.tasks:
        typer.echo(result.run.error)
