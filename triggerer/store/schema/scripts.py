"""Runs migration scripts with Alembic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from triggerer.store.schema.migrations import Migrations, is_after


@dataclass(frozen=True, slots=True)
class Step:
    """A migration that has not run yet."""

    revision: str
    min_revision: str | None
    """The migration that a release must contain once the step has run.

    None for a before-migration, because the previous release still works after it.
    """
    is_concurrent: bool
    """True: PostgreSQL runs the step outside of a transaction, because it builds or drops indexes CONCURRENTLY."""


def configuration(migrations: Migrations) -> Config:
    """Return Alembic's configuration. There is no alembic.ini."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("version_locations", str(migrations.folder))
    config.set_main_option("path_separator", "newline")
    return config


def read_steps(migrations: Migrations, revisions: Sequence[str]) -> list[Step]:
    """Return these migrations as steps."""
    scripts = ScriptDirectory.from_config(configuration(migrations))
    return [_step(scripts, revision) for revision in revisions]


def _step(scripts: ScriptDirectory, revision: str) -> Step:
    module = scripts.get_revision(revision).module
    demanded = getattr(module, "min_revision", revision) if is_after(revision) else None
    return Step(revision, demanded, getattr(module, "is_concurrent", False))


def run_script(connection: Connection, migrations: Migrations, revision: str) -> None:
    """Run the scripts up to this revision on a connection. The caller commits."""
    config = configuration(migrations)
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
