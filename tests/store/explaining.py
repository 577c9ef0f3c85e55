"""The plans that PostgreSQL makes."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triggerer.store.engine.clock import Now
from triggerer.store.engine.script import Row, Step


@dataclass(frozen=True)
class Explained:
    """A step, of which the plan is wanted."""

    step: Step

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        raise NotImplementedError("only plans of PostgreSQL are asked for")

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        statement, arguments = self.step.on_postgres()
        return f"EXPLAIN {statement}", arguments
