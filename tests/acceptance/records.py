"""Reads a service's database with the plain drivers, without any code of ours."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import asyncpg
import orjson


class Records:
    """Reads the database of a service that may be running."""

    def __init__(self, url: str) -> None:
        self._url = url

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """All rows of a query without parameters."""
        if self._url.startswith("sqlite"):
            path = self._url.split("///", 1)[1]
            connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
            try:
                return connection.execute(query).fetchall()
            finally:
                connection.close()
        return asyncio.run(self._fetch(query))

    async def _fetch(self, query: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(self._url.replace("+asyncpg", ""))
        try:
            return [tuple(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    def value(self, query: str) -> Any:
        return self.rows(query)[0][0]

    def holds(self, query: str) -> bool:
        """Return whether a query of one value gives true; False while there are no tables."""
        try:
            return bool(self.value(query))
        except (sqlite3.OperationalError, asyncpg.UndefinedTableError):
            return False

    def wait_until(self, query: str, *, within_s: float = 60) -> None:
        """Poll a query until its only value is true. A `triggerer` command would take a hundred times as long.

        Raises:
            TimeoutError: The value did not become true in time.
        """
        deadline = time.monotonic() + within_s
        while not self.holds(query):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {within_s:g} s: {query}")
            time.sleep(0.05)

    def positions(self) -> dict[str, Counter[tuple[int, int]]]:
        """Return, by asset name, how many events each (partition, offset) has."""
        found: dict[str, Counter[tuple[int, int]]] = {}
        for name, extra in self.rows(
            "SELECT a.name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id"
        ):
            content = orjson.loads(extra)
            found.setdefault(name, Counter())[content["partition"], content["offset"]] += 1
        return found


@dataclass(frozen=True, slots=True)
class Conservation:
    """How asset events and runs add up."""

    events: int
    queued: int
    """The number of pairs of event and DAG that no run has taken."""
    taken: int
    """The number of pairs of event and DAG that a run has taken.

    The primary key of `queued_asset_event` keeps each pair unique.
    """
    active_runs: int
    failed_runs: int


def conservation(records: Records) -> Conservation:
    """Count the events and runs now, in one query."""
    # Use a left join. With an inner join, the database may start from the runs, and scan the queue for each run.
    ((events, queued, taken, active, failed),) = records.rows(
        "SELECT (SELECT count(*) FROM asset_event), waiting, taken,"
        " (SELECT count(*) FROM dag_run WHERE state IN ('queued', 'running')),"
        " (SELECT count(*) FROM dag_run WHERE state NOT IN ('queued', 'running', 'success'))"
        " FROM (SELECT count(*) FILTER (WHERE q.run_pk IS NULL) AS waiting, count(r.id) AS taken"
        "   FROM queued_asset_event q"
        "   LEFT JOIN dag_run r ON r.id = q.run_pk AND r.dag_id = q.dag_id) AS queue"
    )
    return Conservation(events, queued, taken, active, failed)
