"""The statements of one output of `output.jdbc`, in the dialect of its database."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from triggerer.errors import OutputRefused
from triggerer.worker.output.dialects import DRAFT, Dialect, Move
from triggerer.worker.output.marks import is_stale

_TOKENS: Final = "triggerer_output"
_IS_DRAFT: Final = re.compile(rf"{DRAFT}_(?P<digest>[0-9a-f]{{16}})_(?P<mark>[0-9a-f]{{16}}_\d+)")


@dataclass(frozen=True, slots=True)
class Statements:
    """Makes the SQL statements and queries for one output.

    Args:
        table: The table's name as in SQL, with or without a schema.
        name: The output's name, see `Writing`.
        mark: The call's mark, see `marks`.
    """

    dialect: Dialect
    table: str
    name: str
    mark: str

    @property
    def draft(self) -> str:
        """The name of the draft table, in the target's schema. A database trigger of the draft has the same name."""
        return f"{self._prefix}{DRAFT}_{self._digest}_{self.mark}"

    def select_mark(self) -> str:
        """Return a query for the mark of the call that wrote the output. No row: no call has written the output."""
        where = f"token = {_text(self.name)} AND target = {_text(self._target)}"
        return f"SELECT mark FROM {self._tokens} WHERE {where}"

    def create_tokens(self) -> str:
        """Return a statement that creates the table of tokens."""
        return (
            f"CREATE TABLE {self._tokens} (token VARCHAR(64) NOT NULL, target VARCHAR(300) NOT NULL,"
            " mark VARCHAR(64) NOT NULL,"
            f" written_at {self.dialect.timestamp} DEFAULT CURRENT_TIMESTAMP NOT NULL,"
            " PRIMARY KEY (token, target))"
        )

    def create_draft(self, columns: Sequence[str]) -> str:
        """Return a statement that creates the draft. Its columns have the types of the target's columns."""
        return self.dialect.empty_copy.format(
            draft=self.draft, table=self.table, columns=", ".join(self._quoted(columns))
        )

    def count_repeated_keys(self, key: Sequence[str]) -> str:
        """Return a query for the number of keys that several rows of the draft have."""
        names = self._quoted(key)
        listed, known = ", ".join(names), " AND ".join(f"{name} IS NOT NULL" for name in names)
        return (
            f"SELECT COUNT(*) AS repeated FROM (SELECT {listed} FROM {self.draft} WHERE {known}"
            f" GROUP BY {listed} HAVING COUNT(*) > 1) d"
        )

    def commit(self, columns: Sequence[str], key: Sequence[str]) -> list[str]:
        """Return the statements of the commit. The last one is a transaction: it stores the token and moves the rows.

        With a `key`, a row of the draft replaces the target's row with the same key. If another try
        has stored the token, the last statement fails and moves nothing. While another try is
        storing the token, the last statement waits.
        """
        dialect = self.dialect
        move = Move(
            self.table, self.draft, self._quoted(columns), self._quoted(key), dialect.condition
        )
        values = ", ".join(map(_text, (self.name, self._target, self.mark)))
        given = {
            "token": f"INSERT INTO {self._tokens} (token, target, mark) VALUES ({values})",
            "rows": dialect.replace(move) if key else move.insertion(),
            "tokens": self._tokens,
            "draft": self.draft,
            "mark": _text(self.mark),
        }
        return [one.format(**given) for one in dialect.commit]

    def drafts(self) -> str:
        """Return a query for all drafts in the target's schema: the kind (table or trigger) and the name of each."""
        schema, _ = self._parts
        present = self.dialect.schema if schema is None else _text(self._folded(schema))
        return self.dialect.drafts.format(schema=present)

    def drop(self, drafts: Iterable[tuple[str, str]], *, is_written: bool) -> list[str]:
        """Return statements that drop this call's draft, and drafts that are a week old.

        Args:
            drafts: The result of the query `drafts`.
            is_written: True if the output is written. Then also drop the output's other drafts, because they can no
                longer be committed.
        """
        statements = []
        # Drop a database trigger before its table.
        for kind, name in sorted(drafts, reverse=True):
            found = _IS_DRAFT.fullmatch(name.lower())
            if found is None:
                continue
            is_ours = found["digest"] == self._digest and (is_written or found["mark"] == self.mark)
            if is_ours or is_stale(found["mark"]):
                statements.append(f"DROP {kind.strip().upper()} {self._prefix}{name}")
        return statements

    @property
    def _parts(self) -> tuple[str | None, str]:
        opening, closing = map(re.escape, self.dialect.quotes)
        part = rf"(?:{opening}(?:[^{closing}]|{closing}{closing})+{closing}|[\w$#@]+)"
        found = re.fullmatch(rf"(?:({part})\.)?({part})", self.table)
        if found is None or (found[1] and self.dialect.schema is None):
            wanted = "table" if self.dialect.schema is None else "table or schema.table"
            raise OutputRefused(
                f"{self.table!r} is no name of a table of {self.dialect.name}",
                hint=f"give output.jdbc {wanted}",
            )
        return found[1], found[2]

    @property
    def _prefix(self) -> str:
        schema, _ = self._parts
        return "" if schema is None else f"{schema}."

    @property
    def _tokens(self) -> str:
        return f"{self._prefix}{_TOKENS}"

    @property
    def _target(self) -> str:
        """The table's name as the database stores it, without the schema."""
        return self._folded(self._parts[1])

    @property
    def _digest(self) -> str:
        return sha256(f"{self.name} {self._target}".encode()).hexdigest()[:16]

    def _folded(self, part: str) -> str:
        opening, closing = self.dialect.quotes
        if part.startswith(opening):
            return part[1:-1].replace(closing * 2, closing)
        return self.dialect.fold(part)

    def _quoted(self, names: Sequence[str]) -> list[str]:
        return [self.dialect.quoted(name) for name in names]


def _text(value: str) -> str:
    return "'{}'".format(value.replace("'", "''"))
