"""The statements of `output.jdbc` for PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from triggerer.errors import OutputRefused
from triggerer.worker.output.marks import oldest_fresh

_TOKENS: Final = "triggerer_output"
_DRAFT: Final = "triggerer_draft"
_PART: Final = r'(?:"(?:[^"]|"")+"|[^\s".]+)'
_TABLE: Final = re.compile(rf"(?:({_PART})\.)?({_PART})")


@dataclass(frozen=True, slots=True)
class Output:
    """One output to a table.

    Args:
        table: The table's name as in SQL, with or without a schema.
    """

    table: str
    name: str
    mark: str

    @property
    def draft(self) -> str:
        """The draft table, in the schema of the target."""
        return f"{self._schema}{_DRAFT}_{self._digest}_{self.mark}"

    def prepare(self) -> str:
        """Create the table of tokens. Drop the drafts of this output's earlier tries, and all drafts of a week ago."""
        return f"""
DO $body$
DECLARE draft regclass;
BEGIN
  IF to_regclass({_text(self._tokens)}) IS NULL THEN
    BEGIN
      CREATE TABLE {self._tokens} (
        token text, target text, mark text NOT NULL,
        written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (token, target));
    EXCEPTION WHEN unique_violation OR duplicate_table THEN
      -- Another run created it at the same moment.
      NULL;
    END;
  END IF;
  FOR draft IN
    SELECT c.oid::regclass FROM pg_class c
    WHERE c.relkind = 'r' AND c.relnamespace =
        (SELECT relnamespace FROM pg_class WHERE oid = {_text(self.table)}::regclass)
      AND (c.relname LIKE '{_like(f"{_DRAFT}_{self._digest}_")}%'
        OR (c.relname ~ '^{_DRAFT}_[0-9a-f]{{16}}_[0-9a-f]{{16}}_'
          AND substring(c.relname from {len(_DRAFT) + 19} for 8) < '{oldest_fresh()}'))
  LOOP
    EXECUTE 'DROP TABLE IF EXISTS ' || draft;
  END LOOP;
END $body$"""

    def look(self) -> str:
        """Return the mark of the call that wrote the output, or no row."""
        return (
            f"SELECT mark FROM {self._tokens}"
            f" WHERE token = {_text(self.name)} AND target = {self._target}"
        )

    def create_draft(self, columns: Sequence[str]) -> str:
        """Create the draft with the target's columns and their types."""
        listed = ", ".join(map(_quoted, columns))
        return (
            f"CREATE UNLOGGED TABLE {self.draft} AS SELECT {listed} FROM {self.table} WHERE false"
        )

    def merge(self, columns: Sequence[str], key: Sequence[str]) -> str:
        """Store the token and move the draft's rows, unless another try has stored the token. This is one transaction.

        If two tries execute this statement at the same moment, the second waits for the commit of the first, finds the
        token, and moves nothing.
        """
        listed = ", ".join(map(_quoted, columns))
        return f"""
WITH token AS (
  INSERT INTO {self._tokens} (token, target, mark)
  SELECT {_text(self.name)}, {self._target}, {_text(self.mark)}
  ON CONFLICT DO NOTHING RETURNING 1
)
INSERT INTO {self.table} ({listed})
SELECT {listed} FROM {self.draft} WHERE EXISTS (SELECT 1 FROM token){_on_conflict(columns, key)}"""

    def drop_draft(self) -> str:
        """Drop the draft, if it exists."""
        return f"DROP TABLE IF EXISTS {self.draft}"

    @property
    def _schema(self) -> str:
        match = _TABLE.fullmatch(self.table)
        if match is None:
            raise OutputRefused(
                f"{self.table!r} is no name of a table",
                hint="give output.jdbc table or schema.table",
            )
        return f"{match[1]}." if match[1] else ""

    @property
    def _tokens(self) -> str:
        return f"{self._schema}{_TOKENS}"

    @property
    def _digest(self) -> str:
        return sha256(f"{self.name} {self.table}".encode()).hexdigest()[:16]

    @property
    def _target(self) -> str:
        """An SQL expression for the target's full name. It is the same whether or not the user gives the schema."""
        return (
            "(SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n"
            f" ON n.oid = c.relnamespace WHERE c.oid = {_text(self.table)}::regclass)"
        )


def _on_conflict(columns: Sequence[str], key: Sequence[str]) -> str:
    if not key:
        return ""
    others = [name for name in columns if name not in key]
    target = ", ".join(map(_quoted, key))
    if not others:
        return f"\nON CONFLICT ({target}) DO NOTHING"
    changes = ", ".join(f"{_quoted(name)} = EXCLUDED.{_quoted(name)}" for name in others)
    return f"\nON CONFLICT ({target}) DO UPDATE SET {changes}"


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _text(value: str) -> str:
    return "'{}'".format(value.replace("'", "''"))


def _like(prefix: str) -> str:
    return prefix.replace("_", "\\_")
