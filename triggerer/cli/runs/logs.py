"""`triggerer runs logs`: prints the log of a run, as it is or as it grows."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, BinaryIO

import anyio
import typer

from triggerer.cli.runs.choice import DagId, Last, RunId, check_choice, find
from triggerer.cli.runs.copies import print_copy
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, wrong_use
from triggerer.cli.terminal.session import read, settings_for, with_database
from triggerer.operations.reading.run_logs import no_log, open_file, read_parts

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.database.transactions import Database
    from triggerer.store.listing.views import RunView


def logs(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Keep printing as the log grows, until the run has ended."
        ),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Print the log of a run, with the output of its tasks."""
    check_choice(run_id, last)
    if follow:
        if json:
            wrong_use("--json prints one whole object, and does not go with --follow")
        _follow(config, dag_id, run_id)
        return

    async def ask(session: AsyncSession) -> RunView:
        return await find(session, dag_id, run_id)

    row = read(config, ask)
    if not json:
        _copy(config, row, sys.stdout.buffer)
        return
    # --json prints one object, so the whole log is in memory. Tasks may print any bytes.
    collected = BytesIO()
    _copy(config, row, collected)
    print_json(
        {
            "dag_id": row.dag_id,
            "run_id": row.run_id,
            "state": row.state,
            "log_path": row.log_path,
            "log": collected.getvalue().decode("utf-8", "replace"),
        }
    )


def _copy(config: Path | None, row: RunView, out: BinaryIO) -> None:
    """Write the log to `out`, from the file or else from its copy in a bucket.

    Raises:
        NoLog: There is neither a file nor a copy.
        TriggererError: The file or the copy cannot be read.
    """
    log = open_file(row)
    if log is not None:
        with log:
            out.writelines(part for _, part in read_parts(row, log))
        out.flush()
    elif not anyio.run(print_copy, settings_for(config).logs.ship, row, out):
        raise no_log(row)


def _follow(config: Path | None, dag_id: str, run_id: str | None) -> None:
    async def work(database: Database) -> None:
        from triggerer.cli.runs.following import follow_log

        ship = settings_for(config).logs.ship
        await follow_log(database, dag_id, run_id, sys.stdout.buffer, ship=ship)

    with_database(config, work)
