"""Measures the time from a message to its queued run, in a whole service on SQLite, for the brokers' benchmarks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from tests.acceptance.instance import Instance
from tests.acceptance.records import Records

_DAG: Final = """
from triggerer import DAG, Asset, AssetWatcher
from watchers.messaging import MessageQueueTrigger

asset = Asset(name="a", uri="x-bench://a", watchers=[AssetWatcher("w", MessageQueueTrigger("URL"))])
with DAG("d", schedule=asset, max_active_runs=1000):
    pass
"""


def latency_to_runs(
    url: str, connection: Mapping[str, Any], send: Callable[[str], object], messages: int
) -> list[float]:
    """Return, for each message, the seconds from just before it is sent until its run is queued.

    At most ten messages per second are sent, so that no backlog builds up.

    Args:
        url: The source's URL, as `MessageQueueTrigger` takes it. The source must exist and be empty.
        connection: The settings of the connection to the broker.
        send: Sends one message to the source.
    """
    broker = url.partition(":")[0]
    stated = "".join(
        f"{key} = {orjson.dumps(value).decode()}\n" for key, value in connection.items()
    )
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "dags").mkdir()
        (folder / "dags" / "d.py").write_text(_DAG.replace("URL", url))
        store = f"sqlite:///{folder / 'store.db'}"
        instance = Instance(
            folder / "home",
            dags_folder=folder / "dags",
            database_url=store,
            bootstrap="127.0.0.1:1",
            settings=f"[connections.{broker}]\n{stated}",
        )
        records = Records(store)
        instance.start()
        try:
            send('{"n": -1}')
            records.wait_until("SELECT count(*) = 1 FROM dag_run", within_s=120)
            sent: list[float] = []
            for number in range(messages):
                sent.append(time.time())
                send(f'{{"n": {number}}}')
                # Pause, so that each message finds the service idle.
                time.sleep(0.1)
            in_runs = "FROM queued_asset_event q JOIN dag_run r ON r.id = q.run_pk"
            records.wait_until(f"SELECT count(*) = {messages + 1} {in_runs}", within_s=120)
            # One row for each event, because a run may have several events.
            rows = records.rows(
                f"SELECT e.extra, r.queued_at {in_runs} JOIN asset_event e ON e.id = q.asset_event_id"
            )
        finally:
            instance.stop()
    queued = {orjson.loads(extra)["value"]["n"]: _instant(at) for extra, at in rows}
    return [queued[number] - began for number, began in enumerate(sent)]


def _instant(value: Any) -> float:
    return datetime.fromisoformat(str(value)).replace(tzinfo=UTC).timestamp()
