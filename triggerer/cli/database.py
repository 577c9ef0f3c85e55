"""`triggerer db`: migrates and checks the schema, deletes old rows, and prepares a restored database for use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from triggerer.cli.restored import restored
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import counted, print_answer
from triggerer.cli.terminal.session import settings_for, this_user, with_database

if TYPE_CHECKING:
    from triggerer.operations.cleaning import Cleaned
    from triggerer.store.database.transactions import Database
    from triggerer.store.schema.migrate import SchemaStatus

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command()(restored)


@app.command()
def migrate(
    is_after: Annotated[
        bool,
        typer.Option(
            "--after/--before",
            help="After the upgrade of all services: also remove what only the former release needs.",
        ),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Upgrade the schema to this release; do nothing if it is up to date.

    `--before` (the default) only adds to the tables, so services of the previous release still work. Each service
    performs this upgrade itself when it starts.

    `--after` removes what only older releases use. It is refused while services of the previous release are registered.
    """

    async def work(database: Database) -> tuple[bool, str, SchemaStatus]:
        from triggerer.operations.migrating import migrate as upgrade
        from triggerer.store.schema.migrate import Phase, check

        phase = Phase.AFTER if is_after else Phase.BEFORE
        changed = await upgrade(database, this_user(), phase=phase)
        return changed, database.name, await check(database)

    changed, name, status = with_database(config, work, create=True)
    print_answer(
        {
            "database": name,
            "changed": changed,
            "revision": status.revision,
            "left": status.left,
        },
        f"{name}: {'upgraded' if changed else 'nothing to do'}{_left(status)}",
        json=json,
    )


@app.command()
def check(json: options.Json = False, config: options.Config = None) -> None:
    """Check that the database answers and that this release works with its schema; exit code 1 if not."""

    async def work(database: Database) -> tuple[str, SchemaStatus]:
        from triggerer.store.schema.migrate import check

        return database.name, await check(database)

    name, status = with_database(config, work)
    print_answer(
        {"database": name, "ok": True, "revision": status.revision, "left": status.left},
        f"{name}: ok{_left(status)}",
        json=json,
    )


def _left(status: SchemaStatus) -> str:
    """Return a further line if migrations wait for `--after`."""
    if not status.left:
        return ""
    left = counted(len(status.left), "migration")
    return f"\nonce all services are upgraded: triggerer db migrate --after ({left})"


@app.command()
def clean(
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            "--clean-before-timestamp",
            metavar="TIME",
            help="Delete events, runs and their logs from before a time (2026-11-24T12:00:00Z) or an age (90d, PT12H),"
            " instead of the ages in the section `retention`.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be deleted, and delete nothing.")
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete old runs, their logs, old asset events that nothing needs, and old rows of the audit.

    The scheduler deletes old data each night, by the ages in the section `retention`. This command deletes it now.

    An asset event stays while it waits for a DAG, belongs to a run that stays or was emitted by one, or is the
    newest event of its asset.

    An asset event also stays while its message may be processed again. Otherwise the message would create a second
    event.
    """
    instant = None if before is None else options.parse_instant_or_age(before, "--before")
    settings = settings_for(config)
    ack_timeout = settings.triggerer.shared_stream_ack_timeout

    async def work(database: Database) -> Cleaned:
        from triggerer.operations.cleaning import Limits
        from triggerer.operations.cleaning import clean as delete_old
        from triggerer.store.database.transactions import database_now

        async with database.reading() as session:
            limits = Limits.of(settings.retention, await database_now(session))
        if instant is not None:
            limits = limits.with_events_and_runs(instant)
        return await delete_old(
            database, this_user(), limits, ack_timeout=ack_timeout, dry_run=dry_run
        )

    cleaned = with_database(config, work)
    print_answer(cleaned, _summary(cleaned), json=json)


def _summary(cleaned: Cleaned) -> str:
    """Return lines with the numbers of deleted rows, and of kept rows by reason."""
    verb = "would be deleted" if cleaned.dry_run else "deleted"
    gone = (
        counted(cleaned.runs, "run"),
        counted(cleaned.logs, "log"),
        counted(cleaned.asset_events, "asset event"),
        counted(cleaned.backfills, "backfill"),
        *([counted(cleaned.audit, "row") + " of the audit"] * bool(cleaned.audit)),
        *([counted(cleaned.parked, "parked message")] * bool(cleaned.parked)),
    )
    lines = [f"{verb}: {', '.join(gone)}"]
    if cleaned.logs_elsewhere:
        lines.append(f"not on this machine: {counted(cleaned.logs_elsewhere, 'log')}")
    if cleaned.kept_runs:
        lines.append(f"kept, because they are still needed: {counted(cleaned.kept_runs, 'run')}")
    lines += [
        f"kept, {_REASONS[reason]}: {counted(count, 'asset event')}"
        for reason, count in sorted(cleaned.kept_events.items())
    ]
    lines += [f"  {one.asset_name}/{one.watcher}: {one.reason}" for one in cleaned.kept_watchers]
    return "\n".join(lines)


_REASONS: Final = {
    "queued": "because they wait for a DAG",
    "in_run": "because a run that is kept has received them",
    "emitted_by_run": "because a run that is kept has emitted them",
    "newest": "because they are the newest of their assets",
    "parked": "because their messages are parked, or stored for a watcher",
    "watcher": "because their messages may come again",
}
