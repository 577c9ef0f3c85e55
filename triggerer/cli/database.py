"""`triggerer db`: the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from triggerer.cli import options
from triggerer.cli.output import print_answer
from triggerer.cli.session import with_database

if TYPE_CHECKING:
    from triggerer.store.engine.database import Database

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.command()
def migrate(json: options.Json = False, config: options.Config = None) -> None:
    """Bring the schema to this release; does nothing where it is there already."""

    async def work(database: Database) -> tuple[bool, str]:
        from triggerer.store.migrate import upgrade

        return await upgrade(database), database.name

    changed, name = with_database(config, work, create=True)
    print_answer(
        {"database": name, "changed": changed},
        f"{name}: {'upgraded' if changed else 'nothing to do'}",
        json=json,
    )


@app.command()
def check(json: options.Json = False, config: options.Config = None) -> None:
    """Say whether the database answers and has this release's schema; exit code 1 if not."""

    async def work(database: Database) -> str:
        from triggerer.store.migrate import check

        await check(database)
        return database.name

    name = with_database(config, work)
    print_answer({"database": name, "ok": True}, f"{name}: ok", json=json)
