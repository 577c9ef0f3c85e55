"""`triggerer runs show`: one run with its attempts and tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from triggerer.cli.runs.choice import DagId, Last, RunId, check_choice, find
from triggerer.cli.runs.progress import follow_run
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import elapsed, print_fields, print_json, text, wrong_use
from triggerer.cli.terminal.session import read, settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.text.one_line import one_line
from triggerer.operations.reading.run_logs import was_deleted
from triggerer.operations.reading.shipped_logs import copy_url

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import AttemptView, RunView, TaskRunView


def show(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Print the progress of the run until it has ended, and then the run.",
        ),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one run: its times, attempts, tasks, events and error."""
    check_choice(run_id, last)
    if follow:
        if json:
            wrong_use("--json prints one whole object, and does not go with --follow")
        run_id = follow_run(config, dag_id, run_id)

    async def ask(session: AsyncSession) -> tuple[RunView, list[AttemptView], list[TaskRunView]]:
        from triggerer.store.runs.attempts.listing import list_attempts
        from triggerer.store.runs.listing import list_task_runs

        found = await find(session, dag_id, run_id, with_events=True)
        run = found.dag_id, found.run_id
        return found, await list_attempts(session, *run), await list_task_runs(session, *run)

    row, attempts, tasks = read(config, ask)
    if json:
        from dataclasses import asdict

        print_json(asdict(row) | {"attempts": attempts, "tasks": tasks})
        return
    print_fields(_fields(row, copy_url(settings_for(config).logs.ship, row)))
    # For a single attempt without launches or a reason, a table of attempts would repeat the fields above.
    if len(attempts) > 1 or any(one.launches or one.reason for one in attempts):
        _print_attempts(attempts)
    if tasks:
        _print_tasks(tasks)
    if any(one.state == "unknown" for one in attempts):
        typer.echo()
        typer.echo(
            "The service cannot tell whether the unknown attempt is still at work. Once you know that it is not:\n"
            f"  triggerer runs resolve {row.dag_id} {row.run_id} --lost"
        )


def state_of(row: RunView) -> str:
    """Return the run's state for people, with a remark if a running run waits for something."""
    # A queued run gets no remark, because every queued run waits.
    return f"{row.state} (waiting)" if row.waiting_for and row.state == "running" else row.state


def _fields(row: RunView, copy: str | None) -> list[tuple[str, Any]]:
    return [
        ("dag_id", row.dag_id),
        ("run_id", row.run_id),
        ("partition key", row.partition_key),
        ("type", row.run_type),
        ("state", state_of(row)),
        ("waiting for", row.waiting_for),
        ("waiting since", row.waiting_since),
        ("progress", None if row.progress is None else str(row.progress)),
        ("queued at", row.queued_at),
        ("started at", row.started_at),
        ("ended at", row.ended_at),
        ("took", elapsed(row.started_at, row.ended_at)),
        ("attempt", row.attempt),
        ("executor", row.executor),
        ("params", row.params or None),
        ("events", len(row.asset_event_ids)),
        ("exit code", row.exit_code),
        ("log", "deleted by age" if was_deleted(row) else row.log_path),
        ("log copy", copy),
        ("error", row.error),
    ]


def _print_attempts(attempts: list[AttemptView]) -> None:
    has_links = any(one.link for one in attempts)
    has_applications = any(one.application_id for one in attempts)
    typer.echo()
    print_table(
        (
            "attempt",
            "state",
            Column("executor", Kind.MINOR),
            Column("started at", Kind.MINOR),
            Column("took", Kind.MINOR),
            *([Column("application", Kind.TEXT)] if has_applications else []),
            *([Column("link", Kind.TEXT)] if has_links else []),
            Column("reason", Kind.TEXT),
        ),
        (
            (
                one.number,
                one.state,
                one.executor,
                text(one.started_at or one.claimed_at),
                elapsed(one.started_at or one.claimed_at, one.ended_at),
                *([one.application_id] if has_applications else []),
                *([one.link] if has_links else []),
                one_line(_reason(one)),
            )
            for one in attempts
        ),
        empty="",
    )


def _reason(attempt: AttemptView) -> str | None:
    """Return why the attempt is in its state.

    For an unknown attempt, add the reason of each launch that has not ended.
    """
    said = [attempt.reason]
    if attempt.state == "unknown":
        said += [one.reason for one in attempt.launches if one.ended_at is None]
    return "; ".join(dict.fromkeys(filter(None, said))) or None


def _print_tasks(tasks: list[TaskRunView]) -> None:
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
