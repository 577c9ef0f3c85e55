"""`triggerer db`: the schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from triggerer.cli import options
from triggerer.cli.output import print_json
from triggerer.config import load_settings

if TYPE_CHECKING:
    from triggerer.store.database import Database

app = typer.Typer(name="db", help="The database's schema: migrate, check.", no_args_is_help=True)
_T = TypeVar("_T")


@app.command()
def migrate(json: options.Json = False, config: options.Config = None) -> None:
    """Bring the schema to this release; does nothing where it is there already."""

    async def work(database: Database) -> tuple[bool, str]:
        from triggerer.store.migrate import upgrade

        return await upgrade(database), database.name

    changed, name = _with_database(config, work, create=True)
    if json:
        print_json({"database": name, "changed": changed})
    else:
        typer.echo(f"{name}: {'upgraded' if changed else 'nothing to do'}")


@app.command()
def check(json: options.Json = False, config: options.Config = None) -> None:
    """Say whether the database answers and has this release's schema; exit code 1 if not."""

    async def work(database: Database) -> str:
        from triggerer.store.migrate import check

        await check(database)
        return database.name

    name = _with_database(config, work, create=False)
    if json:
        print_json({"database": name, "ok": True})
    else:
        typer.echo(f"{name}: ok")


def _with_database(
    config: Path | None, work: Callable[[Database], Awaitable[_T]], *, create: bool
) -> _T:
    import anyio

    settings = load_settings(config)

    async def run() -> _T:
        from triggerer.store.database import open_database

        async with open_database(
            settings.database.url, home=settings.core.home, create=create
        ) as database:
            return await work(database)

    return anyio.run(run)
