"""A store with many failures, behind the real API. It has 10,000 watchers, 2,000 DAGs and a million events.

`python -m tests.services.databases.ailing_store FOLDER [URL]` creates a SQLite store in the folder, unless there is
one. It prints the API's address and a token, and serves until Ctrl-C. With the URL of an empty PostgreSQL store, it
copies the rows there, and serves that store.
"""

from __future__ import annotations

import json
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import anyio

from tests.services.databases.copied_store import copy_store
from tests.services.databases.stores import sqlite_url
from triggerer.api.serving import serve
from triggerer.config import Settings, load_settings
from triggerer.domain.live_state import LaneLive, Pause, StreamHistory, StreamLive
from triggerer.store.access.tokens import create_token
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.schema.migrate import upgrade

EVENTS: Final = 1_000_000
_STREAMS: Final = 40
_NEWEST_RUN_WITH_EVENTS: Final = 78_000
_STATEMENTS: Final = Path(__file__).with_suffix(".sql")


def dag_id(number: int) -> str:
    return f"{('orders', 'clicks', 'billing', 'reports')[number % 4]}_{number:04}"


def asset_name(number: int) -> str:
    return f"{('orders', 'payments', 'stock')[number % 3]}_{number:04}"


def stream_id(number: int) -> str:
    return f"{number + 1:064x}"


@dataclass(frozen=True)
class AilingStore:
    """The API over a store, and the names of some objects in it."""

    address: str
    token: str

    def dag_id(self, number: int) -> str:
        return dag_id(number)

    def run_id(self, number: int) -> str:
        """Return the id of a run of the first DAG that has taken thousands of events. 0: the newest such run."""
        return f"asset_triggered__{_NEWEST_RUN_WITH_EVENTS - number * 2_000}"

    def asset_name(self, number: int) -> str:
        return asset_name(number)

    def stream_id(self, number: int) -> str:
        return stream_id(number)


def fill(path: Path) -> None:
    """Fill the empty tables of a store by bulk statements."""
    now = datetime.now(UTC)

    def ago(seconds: float) -> str:
        return (now - timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")

    def asset_json(name: str, uri: str) -> str:
        return json.dumps({"asset": {"name": name, "uri": uri}})

    with closing(sqlite3.connect(path)) as store:
        store.create_function("ago", 1, ago, deterministic=True)
        store.create_function("dag", 1, dag_id, deterministic=True)
        store.create_function("asset", 1, asset_name, deterministic=True)
        store.create_function("asset_json", 2, asset_json, deterministic=True)
        store.execute("CREATE TEMP TABLE n (n INTEGER PRIMARY KEY)")
        store.executemany("INSERT INTO n VALUES (?)", ((number,) for number in range(EVENTS)))
        store.commit()
        store.executescript(f"BEGIN; {_STATEMENTS.read_text()} COMMIT;")
        report = json.dumps({"streams": [asdict(_live(number, now)) for number in range(_STREAMS)]})
        store.execute(
            "INSERT INTO instance_report (instance_id, version, report, reported_at) "
            "VALUES ('node-1:41:a', 1, ?, ?)",
            (report, ago(0)),
        )
        store.commit()


def _live(number: int, now: datetime) -> StreamLive:
    """Return the live state of a stream: one is paused, and all others keep up."""
    minute = int(now.timestamp()) // 60 * 60
    return StreamLive(
        stream_id=stream_id(number),
        stream=f"kafka topic-{number}",
        system="kafka",
        epoch=3,
        consumed=9_000_000,
        advanced=8_990_000,
        rejected=12,
        failed=3,
        restarts=number % 3,
        outstanding=2_900,
        outstanding_bytes=580_000,
        lag_messages=57_600,
        lag_seconds=3.0,
        behind=13,
        failing=13,
        triggers=250,
        paused=[Pause("stream_full", None)] if number == 2 else [],
        lane_count=256,
        lanes=[
            LaneLive(json.dumps([f"topic-{number}", lane]), 40 + lane, 9_000, 3.0, None, False, 900)
            for lane in range(64)
        ],
        history=StreamHistory(
            minute,
            [57_000 + back * 337 % 5_000 for back in range(60)],
            [60_000 + back * 77 % 900 for back in range(60)],
        ),
    )


async def run(folder: Path, url: str | None = None) -> None:
    """If the folder has no store, fill one. Serve the store until SIGTERM or Ctrl-C.

    With `url`, copy the store into the PostgreSQL store at `url`, and serve the copy.
    """
    path = folder / "triggerer.db"
    if not path.exists():
        async with open_database(sqlite_url(path)) as database:
            await upgrade(database)
        fill(path)
    if url is not None:
        copy_store(path, url)
    settings = load_settings(
        environ={
            "TRIGGERER__CORE__HOME": str(folder),
            "TRIGGERER__API__RATE_LIMIT": "100000",
            "TRIGGERER__DATABASE__URL": url or sqlite_url(path),
        }
    )
    async with open_database(settings.database.url) as database:
        await _answer(settings, database)


async def _answer(settings: Settings, database: Database) -> None:
    async with database.transaction() as session:
        _, token = await create_token(session, name="tests", role="admin")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
    ):
        listener.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, settings, database, listener)
            print(f"http://127.0.0.1:{listener.getsockname()[1]} {token}", flush=True)
            async for _ in signals:
                tasks.cancel_scope.cancel()
                break


@contextmanager
def open_ailing_store(folder: Path, url: str | None = None) -> Iterator[AilingStore]:
    """Fill a SQLite store in `folder`, and serve it from a separate process.

    With `url`, copy the rows into the PostgreSQL store at `url`, and serve the copy.
    """
    command = [sys.executable, "-m", "tests.services.databases.ailing_store", str(folder)]
    if url is not None:
        command.append(url)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            # The lines before the address belong to the log.
            line = next(line for line in process.stdout if line.startswith("http"))
            yield AilingStore(*line.split())
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    anyio.run(
        run,
        Path(sys.argv[1]),
        sys.argv[2] if len(sys.argv) > 2 else None,
        backend_options={"use_uvloop": True},
    )
