"""Opens the configured database for one command, and runs the command's query or change."""

from __future__ import annotations

import getpass
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from triggerer.cli.terminal.gc_pause import gc_paused
from triggerer.domain.actors import CLI, Actor, Role
from triggerer.errors import UnknownName

# Import the settings and the database inside functions, because these imports take most of a command's time. `--help`
# and wrong use do not need them.
if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.config import Settings
    from triggerer.store.database.transactions import Database

_T = TypeVar("_T")


def settings_for(
    config: Path | None, *, dags_folder: Path | None = None, home: Path | None = None
) -> Settings:
    """Return the settings; the command's options override the file and the environment."""
    from triggerer.config import RawValue, load_settings

    overrides = {
        ("core", key): RawValue(str(value), option)
        for key, value, option in (
            ("dags_folder", dags_folder, "--dags-folder"),
            ("home", home, "--home"),
        )
        if value is not None
    }
    return load_settings(config, overrides=overrides)


def folder_of(settings: Settings) -> Path:
    """Return the DAGs folder.

    Raises:
        ConfigurationError: The folder does not exist, or cannot be read.
    """
    return settings.get_dags_folder()


def read(
    config: Path | None,
    ask: Callable[[AsyncSession], Awaitable[_T]],
    *,
    patience_s: float | None = None,
) -> _T:
    """Run one query. It takes no lock that would block a running service.

    Raises:
        TimeoutError: No answer came within `patience_s`.
    """

    async def asking(database: Database) -> _T:
        async with database.reading() as session:
            return await ask(session)

    return with_database(config, asking, patience_s=patience_s)


def read_list(
    config: Path | None,
    ask: Callable[[AsyncSession], Awaitable[list[_T]]],
    *,
    dag: str | None = None,
    asset: str | None = None,
    watcher: str | None = None,
) -> list[_T]:
    """Run a query for a list. `dag`, `asset` and `watcher` are the names in its filter.

    Raises:
        UnknownDag, UnknownAsset, UnknownWatcher: The list is empty, and the filter names an object
            that does not exist. The hint has the nearest name.
    """

    async def asking(session: AsyncSession) -> list[_T]:
        found = await ask(session)
        if not found and (dag, asset) != (None, None):
            from triggerer.store.listing.unknown import refuse_unknown

            await refuse_unknown(session, dag=dag, asset=asset, watcher=watcher)
        return found

    return read(config, asking)


def this_user() -> Actor:
    """Return the user who runs the command, for the audit."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # The user id of the process has no name on this machine.
        name = str(os.getuid())
    return Actor(name, Role.ADMIN, CLI)


def write(config: Path | None, change: Callable[[AsyncSession], Awaitable[_T]]) -> _T:
    """Change the database in one transaction. The commit wakes a running service."""

    async def changing(database: Database) -> _T:
        async with database.transaction() as session:
            return await change(session)

    return with_database(config, changing)


@gc_paused()
def with_database(
    config: Path | None,
    work: Callable[[Database], Awaitable[_T]],
    *,
    create: bool = False,
    patience_s: float | None = None,
) -> _T:
    """Open the configured database and do the work.

    Args:
        create: True: create a missing SQLite file.
    Raises:
        TimeoutError: Opening the database and the work took longer than `patience_s`.
    """
    import anyio

    settings = settings_for(config)
    quiet = replace(settings.core, log_level="warning", log_format="console")

    async def run() -> _T:
        from triggerer.observability.logging_setup import set_up_logging_when_used
        from triggerer.store.database.opening import open_database

        set_up_logging_when_used(quiet)

        with anyio.fail_after(patience_s):
            async with open_database(
                settings.database.url,
                home=settings.core.home,
                create=create,
                commit_timeout=settings.database.commit_timeout,
            ) as database:
                database.availability.is_silent = True
                return await _work_with_suggestions(work, database)

    return anyio.run(run)


async def _work_with_suggestions(
    work: Callable[[Database], Awaitable[_T]], database: Database
) -> _T:
    """Do the work. Add the nearest known name to an error about an unknown name."""
    try:
        return await work(database)
    except UnknownName as error:
        from triggerer.store.listing.unknown import with_suggestion

        async with database.reading() as session:
            explained = await with_suggestion(session, error)
        raise explained from error
