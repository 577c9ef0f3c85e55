"""`triggerer runs logs`: prints the log of a run, as it is or as it grows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.runs.choice import DagId, Last, RunId, check_choice, find
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json, wrong_use
from triggerer.cli.terminal.session import read, with_database
from triggerer.operations.reading.run_logs import no_log, unreadable
from triggerer.worker.logs.reading import parts_of

if TYPE_CHECKING:
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
    if row.log_path is None:
        raise no_log(row)
    try:
        with Path(row.log_path).open("rb", buffering=0) as log:
            if json:
                # --json prints one object, so the whole log is in memory. Tasks may print any bytes.
                print_json(
                    {
                        "dag_id": row.dag_id,
                        "run_id": row.run_id,
                        "state": row.state,
                        "log_path": row.log_path,
                        "log": b"".join(part for _, part in parts_of(log)).decode(
                            "utf-8", "replace"
                        ),
                    }
                )
            else:
                for _, part in parts_of(log):
                    sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except FileNotFoundError as error:
        raise no_log(row) from error
    except OSError as error:
        raise unreadable(row, error) from error


def _follow(config: Path | None, dag_id: str, run_id: str | None) -> None:
    async def work(database: Database) -> None:
        from triggerer.cli.runs.following import follow_log

        await follow_log(database, dag_id, run_id, sys.stdout.buffer)

    with_database(config, work)
