"""A step of two statements. The second is executed only if the first returned rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row
from triggerer.store.database.statement import Statement


@dataclass(frozen=True, slots=True)
class TwoStatements:
    """A step that returns the rows of the statement `first`.

    On SQLite, `second` is executed too if `first` returned rows. PostgreSQL receives one statement, `whole`, with the
    effects of `first` and `second`, in one round trip. All three statements take their parameters from `values`.
    """

    first: Statement
    second: Statement
    whole: Statement
    values: Mapping[str, Any]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        rows = self.first(**self.values).on_sqlite(connection, now)
        if rows:
            self.second(**self.values).on_sqlite(connection, now)
        return rows

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        return self.whole(**self.values).on_postgres()
