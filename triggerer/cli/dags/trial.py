"""`triggerer dags test`: runs a DAG once in the foreground, and stores nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import elapsed, print_json, text, wrong_use
from triggerer.cli.terminal.session import folder_of, settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.text.one_line import one_line

if TYPE_CHECKING:
    from triggerer.operations.trial import TrialEvent, TrialResult

Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="ASSET[=JSON]",
        help='Give the run an event of this asset (name or URI), for example orders={"rows": 12}. Can be given several'
        " times.",
    ),
]


def try_(
    dag_id: options.DagId,
    event: Events = None,
    logical_date: options.LogicalDate = None,
    partition_key: Annotated[
        str | None,
        typer.Option(
            "--partition-key", metavar="KEY", help="Partition key of the run and of its events."
        ),
    ] = None,
    params: Annotated[
        str | None,
        typer.Option(
            "--params",
            metavar="JSON",
            help='JSON object that overrides params of the DAG, for example {"full": true}.',
        ),
    ] = None,
    dags_folder: options.DagsFolder = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Run a DAG once in the foreground, with a temporary store; exit code 1 if the run fails.

    The command prints the run's log as it grows, and then the result of each task. A running service does not notice
    the run. Side effects of the tasks are real: a task that writes to a table changes the real table.
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
        spark=settings.spark.to_json(),
        allowed_modules=settings.core.allowed_trigger_modules,
        parse_timeout=settings.dag_processor.parse_timeout,
        pools=settings.pools,
    )
    log: list[bytes] = []

    async def run() -> TrialResult:
        return await try_dag(trial, on_log=log.append if json else _print_log)

    result = anyio.run(run)
    if json:
        whole = b"".join(log).decode("utf-8", "replace")
        print_json(
            asdict(result.run) | {"tasks": result.tasks, "emitted": result.emitted, "log": whole}
        )
    else:
        _print(result)
    if result.run.state != "success":
        raise typer.Exit(1)


def _parse_event(given: str) -> TrialEvent:
    import orjson

    from triggerer.operations.trial import TrialEvent

    # A URI may contain a "=". Split at the first "=" that JSON follows.
    for at, sign in enumerate(given):
        if sign != "=":
            continue
        try:
            orjson.loads(given[at + 1 :])
        except orjson.JSONDecodeError:
            continue
        return TrialEvent(given[:at], options.parse_extra(given[at + 1 :], "--event"))
    if given.endswith("}"):
        wrong_use(f"--event {given}: the text after the = is not JSON")
    return TrialEvent(given, {})


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
