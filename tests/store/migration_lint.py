"""Finds out why a before-migration would disturb services of the previous release."""

import re
from collections.abc import Iterator
from io import StringIO

from alembic import command

from triggerer.store.schema.migrations import Migrations, is_after
from triggerer.store.schema.scripts import configuration

_TABLE = re.compile(r"CREATE TABLE (\w+) \(")
_INDEX = re.compile(
    r"CREATE (?P<unique>UNIQUE )?INDEX (?P<concurrently>CONCURRENTLY )?(IF NOT EXISTS )?\w+ ON (?P<table>\w+) "
)
_COLUMN = re.compile(r"ALTER TABLE \w+ ADD COLUMN (?!.*NOT NULL)")
_STORAGE = re.compile(r"ALTER TABLE \w+ SET \(")
_VERSION = re.compile(r"UPDATE alembic_version |BEGIN|COMMIT")


def statements(migrations: Migrations, revision: str) -> list[str]:
    """Return the statements of one migration on PostgreSQL, each on one line."""
    former = migrations.revisions[migrations.revisions.index(revision) - 1]
    config = configuration(migrations)
    config.output_buffer = StringIO()
    command.upgrade(config, f"{former}:{revision}", sql=True)
    sql = re.sub(r"--.*", "", config.output_buffer.getvalue())
    return [" ".join(one.split()) for one in sql.split(";") if one.strip()]


def disturbances(migrations: Migrations) -> Iterator[str]:
    """Yield each statement of a before-migration that does more than add. The first migration is left out."""
    for revision in migrations.revisions[1:]:
        if not is_after(revision):
            made: set[str] = set()
            for statement in statements(migrations, revision):
                if not _only_adds(statement, made):
                    yield f"{revision}: {statement}"


def _only_adds(statement: str, made: set[str]) -> bool:
    """Return whether the statement only adds what the previous release can ignore, and locks no table for long."""
    if table := _TABLE.match(statement):
        made.add(table[1])
        return "REFERENCES" not in statement
    if index := _INDEX.match(statement):
        return index["table"] in made or bool(index["concurrently"] and not index["unique"])
    return any(one.match(statement) for one in (_COLUMN, _STORAGE, _VERSION))
