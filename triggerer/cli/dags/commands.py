"""The commands of `triggerer dags`, except `backfill`, `test` and `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from triggerer.cli.dags.backfill import backfill
from triggerer.cli.dags.trial import try_
from triggerer.cli.deleting import delete_dag
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import (
    check_state,
    print_answer,
    print_fields,
    print_json,
    print_note,
)
from triggerer.cli.terminal.session import read, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list
from triggerer.domain.text.one_line import one_line
from triggerer.errors import UnknownDag

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.scheduler.explaining import NextRun
    from triggerer.store.listing.views import DagFileView, DagView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command("test")(try_)
app.command()(backfill)
app.command("delete")(delete_dag)
DagId = options.DagId
_MOST_NEXT_RUNS: Final = 10_000
"""The number of runs that `--limit 0` shows. "All" is impossible, because most timetables never end."""


@app.command("list")
def list_(
    dag: options.Dag = None,
    asset: options.Asset = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List DAGs, and the DAG files with problems.

    States: active, paused, stale (no file declares the DAG).
    """
    check_state(state, options.DAG_STATES)

    async def ask(
        session: AsyncSession,
    ) -> tuple[list[DagView], list[DagFileView], list[DagFileView]]:
        from triggerer.store.dags.listing import (
            list_broken_files,
            list_dags,
            list_ignored_files,
        )
        from triggerer.store.listing.unknown import refuse_unknown

        found = await list_dags(session, limit=limit, dag=dag, asset=asset, state=state)
        if not found:
            await refuse_unknown(session, dag=dag, asset=asset)
        return found, await list_broken_files(session), await list_ignored_files(session)

    found, broken, ignored = read(config, ask)
    print_list(
        found,
        (
            "dag_id",
            Column("schedule", Kind.TEXT),
            "state",
            "queued events",
            "next run",
            Column("last run", Kind.MINOR),
            "last state",
            Column("file", Kind.MINOR),
        ),
        lambda row: (
            row.dag_id,
            readable_schedule(row.schedule),
            readable_state(row),
            readable_queue(row),
            row.next_run_after,
            row.last_run_id,
            row.last_run_state,
            row.path,
        ),
        json=json,
        empty="No DAGs.",
        limit=limit,
    )
    for file in broken:
        for error in file.errors:
            print_note(f"broken: {readable_error(error)}")
    for file in ignored:
        for error in file.errors:
            print_note(f"warning: {readable_error(error)}")
    listed = {file.path for file in broken}
    for row in found:
        if row.file_error and not row.is_stale and row.path not in listed:
            print_note(f"broken for an executor: {one_line(row.file_error)}")


@app.command()
def show(dag_id: DagId, json: options.Json = False, config: options.Config = None) -> None:
    """Show one DAG with its settings and tasks."""

    async def ask(session: AsyncSession) -> list[DagView]:
        from triggerer.store.dags.listing import list_dags

        found = await list_dags(session, dag=dag_id)
        if not found:
            raise UnknownDag(dag_id)
        return found

    found = read(config, ask)
    row = found[0]
    if json:
        print_json(row)
        return
    print_fields(
        [
            ("dag_id", row.dag_id),
            ("description", row.description),
            ("file", row.path),
            ("schedule", readable_schedule(row.schedule)),
            ("state", readable_state(row)),
            ("file missing since", row.file_missing_since),
            ("file broken", None if row.is_stale else row.file_error),
            ("tags", ", ".join(row.tags) or None),
            ("params", row.params or None),
            ("max_active_runs", row.max_active_runs),
            ("events_per_run", row.events_per_run),
            ("start_date", row.start_date),
            ("end_date", row.end_date),
            ("catchup", "yes" if row.catchup else None),
            ("min_run_gap", row.min_run_gap and f"{row.min_run_gap:g} s"),
            ("quiet_period", row.quiet_period and f"{row.quiet_period:g} s"),
            ("depends_on_past", "yes" if row.depends_on_past else None),
            ("priority", row.priority or None),
            ("pools", row.pools),
            ("next run", row.next_run_after),
            ("queued events", readable_queue(row)),
            ("last run", row.last_run_id and f"{row.last_run_id} ({row.last_run_state})"),
            ("tasks", "\n".join(_readable_task(task) for task in row.tasks)),
        ]
    )
    for warning in row.file_warnings:
        print_note(f"warning: {readable_error(warning)}")


@app.command("next")
def next_(
    dag_id: DagId,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "--count",
            min=0,
            help="Show at most this number of runs; 0 shows all, up to 10000.",
        ),
    ] = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show the DAG's next runs according to its timetable. Runs that are already due come first."""

    async def ask(session: AsyncSession) -> list[NextRun]:
        from triggerer.scheduler.explaining import next_runs

        return await next_runs(session, dag_id, limit or _MOST_NEXT_RUNS)

    found = read(config, ask)
    has_keys = any(one.partition_key is not None for one in found)
    print_list(
        found,
        (
            "run after",
            # The logical date usually equals the start of the interval, so a narrow terminal can do without it.
            Column("logical date", Kind.MINOR),
            "interval starts",
            "interval ends",
            *([Column("partition key", Kind.TEXT)] if has_keys else []),
        ),
        lambda one: (
            one.run_after,
            one.logical_date,
            one.data_interval_start,
            one.data_interval_end,
            *([one.partition_key] if has_keys else []),
        ),
        json=json,
        empty=f"No timetable asks for a run: `triggerer why-not {dag_id}` shows what the DAG waits for.",
        limit=limit,
    )


@app.command()
def trigger(
    dag_id: DagId,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", help="Id of the new run. Default: made from the current time."),
    ] = None,
    params: Annotated[
        str | None,
        typer.Option(
            "--params",
            "--conf",
            metavar="JSON",
            help='JSON object that overrides params of the DAG, for example {"full": true}.',
        ),
    ] = None,
    logical_date: options.LogicalDate = None,
    partition_key: Annotated[
        str | None,
        typer.Option(
            "--partition-key",
            metavar="KEY",
            help="Partition key of the run, for example 2026-03-10.",
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue a run by hand. The DAG's queued events stay queued."""
    values = options.parse_object(params, "--params")
    date = options.parse_instant(logical_date, "--logical-date")

    async def change(session: AsyncSession) -> str:
        from triggerer.operations.triggering import trigger_dag

        return await trigger_dag(
            session,
            this_user(),
            dag_id,
            run_id=run_id,
            params=values,
            logical_date=date,
            partition_key=partition_key,
        )

    created = write(config, change)
    print_answer(
        {"dag_id": dag_id, "run_id": created, "state": "queued"},
        f"{dag_id}: queued {created}",
        json=json,
    )


@app.command()
def pause(dag_id: DagId, json: options.Json = False, config: options.Config = None) -> None:
    """Pause a DAG: the scheduler makes no further run, and asset events wait in the DAG's queue."""
    _set_paused(config, dag_id, True, json=json)


@app.command()
def unpause(dag_id: DagId, json: options.Json = False, config: options.Config = None) -> None:
    """Unpause a DAG: new runs start, with the asset events that were queued during the pause."""
    _set_paused(config, dag_id, False, json=json)


def readable_state(dag: DagView) -> str:
    """Return the DAG's state, and whether its file is missing or does not load."""
    state = "stale" if dag.is_stale else "paused" if dag.is_paused else "active"
    if dag.file_missing_since:
        return f"{state} (file missing)"
    return f"{state} (file broken)" if dag.file_error and not dag.is_stale else state


def readable_queue(dag: DagView) -> str:
    """Return the number of events that wait for the DAG, with a `+` if it is a lower bound."""
    return f"{dag.queued_events}{'+' if dag.is_counted_short else ''}"


def readable_schedule(schedule: dict[str, Any] | None, *, nested: bool = False) -> str:
    """Return the schedule in short: `a & b` for assets, the timetable's summary for a timetable; `-` for None."""
    if schedule is None:
        return "-"
    if "timetable" in schedule:
        return _readable_timetable(schedule["timetable"])
    for kind, joint in (("either", "or"), ("both", "and")):
        if kind in schedule:
            timetable = _readable_timetable(schedule[kind]["timetable"])
            return f"{readable_schedule(schedule[kind]['assets'], nested=True)} {joint} {timetable}"
    if "partitioned" in schedule:
        return f"{readable_schedule(schedule['partitioned']['assets'], nested=True)} by partition"
    for kind, sign in (("all", " & "), ("any", " | ")):
        if kind in schedule:
            joined = sign.join(readable_schedule(part, nested=True) for part in schedule[kind])
            return f"({joined})" if nested and len(schedule[kind]) > 1 else joined
    if "alias" in schedule:
        return f"alias {schedule['alias']}"
    asset: dict[str, str] = schedule["asset"]
    return asset["name"]


def _readable_timetable(stored: dict[str, Any]) -> str:
    from triggerer.domain.timetables import timetable_from_json
    from triggerer.errors import TriggererError

    try:
        return timetable_from_json(stored).summary
    except TriggererError:
        # The timetable's plugin is not installed on this machine.
        return str(stored.get("type"))


def readable_error(error: dict[str, Any]) -> str:
    """Return `file:line: reason`."""
    line = f":{error['line']}" if error.get("line") else ""
    return f"{error['file']}{line}: {error['reason']}"


def _readable_task(task: dict[str, Any]) -> str:
    upstream = f" after {', '.join(task['upstream'])}" if task.get("upstream") else ""
    return f"{task['task_id']}{upstream}{' (Spark)' if task.get('needs_spark') else ''}"


def _set_paused(config: Path | None, dag_id: str, paused: bool, *, json: bool) -> None:
    async def change(session: AsyncSession) -> None:
        from triggerer.operations.pausing import pause_dag, unpause_dag

        await (pause_dag if paused else unpause_dag)(session, this_user(), dag_id)

    write(config, change)
    print_answer(
        {"dag_id": dag_id, "is_paused": paused},
        f"{dag_id}: {'paused' if paused else 'active'}",
        json=json,
    )
