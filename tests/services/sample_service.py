"""A service with some of everything, to try the web page and the API: `python -m tests.services.sample_service`.

It prints the address and a link that signs in, and runs until Ctrl-C. Nothing outside of a temporary folder is needed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TICKS = '''
"""A shared stream that ticks; one watcher rejects some ticks, so that messages are parked."""

import asyncio
import json
from datetime import UTC, datetime

from triggerer import DAG, Asset, AssetWatcher, BaseEventTrigger, SharedStreamProducer, TriggerEvent, task


class Ticker(SharedStreamProducer):
    async def open_stream(self):
        began = datetime.now(UTC).isoformat()
        number = 0
        while True:
            number += 1
            at = datetime.now(UTC).isoformat()
            yield {"n": number, "at": at, "text": "<script>alert(1)</script>"}, (began, number)
            await asyncio.sleep(1)

    async def advance(self, batch):
        pass

    def get_idempotency_key(self, payload):
        return f"{payload[0]}/{payload[1]}"

    def dump_event(self, event):
        return json.dumps(event).encode()

    def load_event(self, data):
        return json.loads(data)


class Ticks(BaseEventTrigger):
    def __init__(self, fails_every=0):
        self.fails_every = fails_every

    def serialize(self):
        return f"{type(self).__module__}.{type(self).__qualname__}", {"fails_every": self.fails_every}

    def shared_stream_key(self):
        return ("ticks",)

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        return Ticker()

    async def filter_shared_stream(self, shared_stream):
        async for event in shared_stream:
            if self.fails_every and event["n"] % self.fails_every == 0:
                raise ValueError(f"cannot read tick {event['n']}")
            yield TriggerEvent(event)


class Failing(BaseEventTrigger):
    """Cannot start."""

    def serialize(self):
        return f"{type(self).__module__}.{type(self).__qualname__}", {}

    async def run(self):
        raise ConnectionError("the broker at broker.example:9092 does not answer")
        yield


ticks = Asset("x-test://ticks", name="ticks", watchers=[AssetWatcher("all", Ticks())])
odd = Asset("x-test://odd", name="odd ticks", watchers=[AssetWatcher("picky", Ticks(fails_every=5))])
broken = Asset("x-test://broken", name="broken", watchers=[AssetWatcher("down", Failing())])
report = Asset("file:///srv/report.parquet", name="report")

with DAG("on_ticks", schedule=[ticks], events_per_run=20, tags=["sample"], description="Counts ticks."):

    @task(outlets=[report])
    def count(triggering_asset_events, outlet_events, log):
        for asset, events in triggering_asset_events.items():
            log.info("%s: %d events", asset.name, len(events))
        outlet_events[report].extra = {"rows": 20}

    count()

with DAG("on_report", schedule=[report], tags=["sample"]):

    @task
    def read(log):
        log.info("reads the report")

    @task
    def send(log):
        log.info("sends it")

    read() >> send()

with DAG("fails", schedule=[report], tags=["sample"]):

    @task
    def work():
        raise ValueError("the report has no rows")

    work()

with DAG("waits_for_more", schedule=ticks & broken, tags=["sample"]):

    @task
    def never():
        pass

    never()

with DAG("paused", schedule=[odd], is_paused_upon_creation=True):

    @task
    def idle():
        pass

    idle()

with DAG("hourly", schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC)):

    @task
    def tick(log):
        log.info("an hour is over")

    tick()
'''
BROKEN = "from triggerer import DAG\n\nwith DAG('unfinished', schedule=):\n    pass\n"


@dataclass(frozen=True)
class SampleService:
    """The running service."""

    address: str
    token: str
    home: Path
    config: Path
    pid: int

    def client(self, token: str | None = None) -> httpx.Client:
        """Return a client with this token; without one, with the administrator's token."""
        headers = {"Authorization": f"Bearer {token or self.token}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30)

    def command(self, *words: str) -> Any:
        """Run a command and return its JSON."""
        return json.loads(
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "triggerer",
                    *words,
                    "--json",
                    "--config",
                    str(self.config),
                ],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )


@contextmanager
def open_sample_service(
    folder: Path,
    *,
    dags: dict[str, str] | None = None,
    settings: str = "",
    port: int = 0,
    capacity: int = 1_000,
) -> Iterator[SampleService]:
    """Start `triggerer standalone` in a folder, and stop it at the end. Its output goes to `service.log`."""
    dags_folder = folder / "dags"
    dags_folder.mkdir(parents=True, exist_ok=True)
    for name, text in (dags or {"ticks.py": TICKS, "unfinished.py": BROKEN}).items():
        (dags_folder / name).write_text(text)
    home, config = folder / "home", folder / "triggerer.toml"
    config.write_text(
        f'[core]\nhome = "{home}"\ndags_folder = "{dags_folder}"\n'
        f"[triggerer]\nmax_deliveries = 1\ncapacity = {capacity}\n[dag_processor]\nmin_file_process_interval = 2\n"
        f"[api]\nport = {port}\n{settings}"
    )
    environ = {name: value for name, value in os.environ.items() if "API__PORT" not in name}
    with (folder / "service.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "triggerer", "standalone", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 60
        while not ((home / "api-token").exists() and _answers(home)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "service.log").read_text())
            time.sleep(0.1)
        yield SampleService(
            (home / "api-address").read_text().strip(),
            (home / "api-token").read_text().strip(),
            home,
            config,
            process.pid,
        )
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(home: Path) -> bool:
    try:
        address = (home / "api-address").read_text().strip()
        return httpx.get(f"{address}/api/v1/openapi.json", timeout=20).status_code == 200
    except (OSError, httpx.HTTPError):
        return False


def main() -> None:
    """Run the sample until Ctrl-C."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    with (
        tempfile.TemporaryDirectory() as folder,
        open_sample_service(Path(folder), port=port) as service,
    ):
        link = subprocess.run(
            [
                sys.executable,
                "-m",
                "triggerer",
                "tokens",
                "login",
                "--config",
                str(service.config),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        print(f"API:     {service.address}/api/v1\ntoken:   {service.token}\nsign in: {link}")
        with suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
