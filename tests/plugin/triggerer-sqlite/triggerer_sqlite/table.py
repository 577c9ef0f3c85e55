"""A queue in a SQLite table. It stands for a broker with its client library.

A row is a message. A reader leases the row, and deletes it when the message is done.
"""

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS messages (
    id TEXT PRIMARY KEY, queue TEXT NOT NULL, body BLOB NOT NULL, published_at REAL NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0, visible_at REAL NOT NULL DEFAULT 0, holder TEXT
);
CREATE TABLE IF NOT EXISTS dead_letters (
    id TEXT PRIMARY KEY, queue TEXT NOT NULL, body BLOB NOT NULL, reason TEXT NOT NULL
);
"""
_LEASE = """
UPDATE messages SET holder = ?, visible_at = ? WHERE id IN (
    SELECT id FROM messages WHERE queue = ? AND visible_at <= ? ORDER BY rowid LIMIT 100
) RETURNING id, body, published_at, failures
"""


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    body: bytes
    published_at: float
    failures: int


@dataclass(frozen=True, slots=True)
class Retry:
    """A failed message to deliver again after a delay, with its new number of failures."""

    id: str
    failures: int
    delay_s: float


class Table:
    """One queue of a file. Each method is one transaction, and blocks."""

    def __init__(self, path: str, queue: str) -> None:
        self.path = path
        self.queue = queue

    @contextmanager
    def _transaction(self, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        where = f"{Path(self.path).absolute().as_uri()}?mode={mode}"
        database = sqlite3.connect(where, uri=True, timeout=5)
        try:
            with database:
                yield database
        finally:
            database.close()

    def create(self) -> None:
        with self._transaction("rwc") as database:
            database.executescript(_SCHEMA)

    def send(self, bodies: Sequence[bytes]) -> None:
        rows = [(uuid.uuid4().hex, self.queue, body, time.time()) for body in bodies]
        with self._transaction() as database:
            database.executemany(
                "INSERT INTO messages (id, queue, body, published_at) VALUES (?, ?, ?, ?)", rows
            )

    def lease(self, holder: str, lease_s: float) -> list[Row]:
        """Lease up to 100 visible messages to a holder. Nobody else gets them until the lease ends."""
        now = time.time()
        with self._transaction() as database:
            return [
                Row(*row)
                for row in database.execute(_LEASE, (holder, now + lease_s, self.queue, now))
            ]

    def renew(self, holder: str, lease_s: float) -> None:
        with self._transaction() as database:
            database.execute(
                "UPDATE messages SET visible_at = ? WHERE holder = ?",
                (time.time() + lease_s, holder),
            )

    def release(self, holder: str) -> None:
        """Give back all messages of a holder."""
        with self._transaction() as database:
            database.execute(
                "UPDATE messages SET visible_at = 0, holder = NULL WHERE holder = ?", (holder,)
            )

    def settle(
        self,
        holder: str,
        done: Sequence[str],
        dead: Sequence[tuple[str, bytes, str]],
        retries: Sequence[Retry],
    ) -> None:
        """Delete `done`, dead-letter `dead` and give back `retries`, for messages that the holder still has."""
        now = time.time()
        with self._transaction() as database:
            self._bury(database, dead)
            database.executemany(
                "DELETE FROM messages WHERE id = ? AND holder = ?",
                [(id_, holder) for id_ in (*done, *(id_ for id_, _, _ in dead))],
            )
            database.executemany(
                "UPDATE messages SET failures = ?, visible_at = ?, holder = NULL WHERE id = ? AND holder = ?",
                [(one.failures, now + one.delay_s, one.id, holder) for one in retries],
            )

    def bury(self, id_: str, body: bytes, reason: str) -> None:
        with self._transaction() as database:
            self._bury(database, [(id_, body, reason)])

    def _bury(self, database: sqlite3.Connection, dead: Sequence[tuple[str, bytes, str]]) -> None:
        database.executemany(
            "INSERT OR REPLACE INTO dead_letters (id, queue, body, reason) VALUES (?, ?, ?, ?)",
            [(id_, self.queue, body, reason) for id_, body, reason in dead],
        )

    def counts(self) -> tuple[int, int]:
        """Return the number of messages that wait or are leased, and the number of dead letters."""
        with self._transaction() as database:
            (waiting,) = database.execute(
                "SELECT count(*) FROM messages WHERE queue = ?", (self.queue,)
            ).fetchone()
            (dead,) = database.execute(
                "SELECT count(*) FROM dead_letters WHERE queue = ?", (self.queue,)
            ).fetchone()
        return waiting, dead

    def dead_letters(self) -> list[bytes]:
        with self._transaction() as database:
            found = database.execute("SELECT body FROM dead_letters WHERE queue = ?", (self.queue,))
            return [body for (body,) in found]
