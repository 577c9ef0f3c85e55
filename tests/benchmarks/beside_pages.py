"""Measures the time from a message to the user's code, with and without open pages and requests.

Run with `python -m tests.benchmarks.beside_pages`.

One service on SQLite (the default) receives messages at a steady rate, in segments of equal length. In half of the
segments:

- five pages are open and listen for changes;
- clients with the lowest priority request the lists of a page 50 times a second.

With `--burn-ms 9`, a process with the lowest priority uses 9 ms of processor time 50 times a second, instead of the
clients. The API and its clients use about as much, so this is the cost of any busy process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import orjson

from tests.benchmarks.dags import that_notes_its_start
from tests.benchmarks.latency import publish_at, runs_of_events, times_of
from tests.benchmarks.load import Paced
from tests.benchmarks.report import Figures, Report, Row, percentile, surroundings
from tests.benchmarks.scene import Scene, Store, open_scene
from tests.services.process import free_ports
from triggerer.processes.priority import give_way

_SHOWN: Final = ("committed", "queued", "user's code", "advanced")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--rate", type=int, default=20, help="messages a second")
    parser.add_argument("--seconds", type=int, default=15, help="of each segment")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50, help="a second")
    parser.add_argument(
        "--burn-ms", type=float, help="burn this in place of each request; no page is open"
    )
    arguments = parser.parse_args()
    report = Report(None)
    report.say(f"{surroundings()}")
    with open_scene(report, [arguments.store], quick=False) as scene:
        report.show(_measure(scene, arguments.store, arguments))


def _measure(scene: Scene, store: Store, arguments: argparse.Namespace) -> Figures:
    topic, (port,) = scene.new_topic(), free_ports(1)
    noted = scene.new_folder("beside-pages") / "starts.jsonl"
    dag_file = that_notes_its_start(topic, f"{topic}-group", noted)
    alone: list[Paced] = []
    beside: list[Paced] = []
    with scene.service(
        dag_file, store, settings=f"[api]\nport = {port}\nrate_limit = 100000\n"
    ) as service:
        service.start("events")
        service.wait_for_watchers(1)
        token = service.home / "api-token"
        sent = len(publish_at(scene, topic, rate=20, seconds=5, first=0).messages)
        for number in range(arguments.pairs * 2):
            has_pages = number % 4 in (1, 2)
            clients = _Clients(port, token, arguments) if has_pages else None
            try:
                paced = publish_at(
                    scene, topic, rate=arguments.rate, seconds=arguments.seconds, first=sent
                )
            finally:
                if clients is not None:
                    scene.report.say(f"{clients.stop()} requests were answered")
            (beside if has_pages else alone).append(paced)
            sent += len(paced.messages)
            service.wait_until_done(sent, within_s=120)
        held_by = runs_of_events(service.records)
        run_pks = dict(service.records.rows("SELECT run_id, id FROM dag_run"))
        stamps = service.stop()
    starts = {
        run_pks[run_id]: at for run_id, at in map(orjson.loads, noted.read_text().splitlines())
    }
    rows = [
        _row(name, percent, [_times(one, stamps, held_by, starts)[name] for one in alone],
             [_times(one, stamps, held_by, starts)[name] for one in beside])
        for name in _SHOWN
        for percent in (50, 99)
    ]  # fmt: skip
    title = f"{_load(arguments)}, {store}, {arguments.rate} messages/s"
    return Figures(
        "beside-pages",
        title,
        tuple(rows),
        "ms, medians of the segments; aim: p99 beside pages within 10 %",
    )


def _load(arguments: argparse.Namespace) -> str:
    if arguments.burn_ms:
        return f"{arguments.burn_ms:g} ms of processor time {arguments.requests} times/s"
    return f"{arguments.pages} pages and {arguments.requests} requests/s"


def _times(
    paced: Paced, stamps: Any, held_by: Any, starts: dict[int, int]
) -> dict[str, list[float]]:
    places = [((one.partition, one.offset), one.at) for one in paced.messages]
    begun = sorted((starts[held_by[place]] - at) / 1e6 for place, at in places)
    return {**times_of(paced, stamps, held_by), "user's code": begun}


def _row(
    name: str, percent: int, alone: Sequence[list[float]], beside: Sequence[list[float]]
) -> Row:
    before = [percentile(one, percent) for one in alone]
    after = [percentile(one, percent) for one in beside]
    return {
        "": f"{name} p{percent}",
        "alone": median(before),
        "beside": median(after),
        "ratio": median(after) / median(before),
        "of the pairs": ", ".join(f"{b / a:.2f}" for a, b in zip(before, after, strict=True)),
    }


class _Clients:
    """A process of the lowest priority that opens pages and sends requests, or runs the control."""

    def __init__(self, port: int, token: Path, arguments: argparse.Namespace) -> None:
        context = multiprocessing.get_context("spawn")
        self._ended = context.Event()
        self._answered = context.Value("i", 0)
        counted = self._ended, self._answered
        if arguments.burn_ms:
            self._process = context.Process(
                target=_burn, args=(arguments.burn_ms / 1000, arguments.requests, *counted)
            )
        else:
            given = f"http://127.0.0.1:{port}", token.read_text().strip(), arguments.pages
            self._process = context.Process(
                target=_ask, args=(*given, arguments.requests, *counted)
            )
        self._process.start()
        while not self._answered.value and self._process.is_alive():
            self._process.join(0.05)

    def stop(self) -> int:
        """End the clients; return the number of answered requests, or of the control's bursts."""
        self._ended.set()
        self._process.join(30)
        return int(self._answered.value)


def _come_last() -> None:
    # With autogroups, Linux divides the processor among sessions, and a niceness counts only within its session. So
    # this process gets its own session. `give_way` also raises the session's niceness.
    os.setsid()
    give_way(19)


def _burn(seconds: float, rate: int, ended: Event, burned: Any) -> None:
    _come_last()
    due = time.monotonic()
    while not ended.is_set():
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        burned.value += 1
        due += 1 / rate
        time.sleep(max(0.0, due - time.monotonic()))  # keep the rate of the control


def _ask(url: str, token: str, pages: int, rate: int, ended: Event, answered: Any) -> None:
    _come_last()
    asyncio.run(_ask_until(url, token, pages, rate, ended, answered))


async def _ask_until(
    url: str, token: str, pages: int, rate: int, ended: Event, answered: Any
) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=30
    ) as client:
        paths = itertools.cycle(await _lists(client))

        async def get() -> None:
            (await client.get(next(paths))).raise_for_status()
            answered.value += 1

        streams = [asyncio.create_task(_listen(client)) for _ in range(pages)]
        waiting: set[asyncio.Task[None]] = set()
        due = asyncio.get_running_loop().time()
        while not ended.is_set():
            waiting = {one for one in waiting if not one.done() or one.result()}
            waiting.add(asyncio.create_task(get()))
            due += 1 / rate
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
        for one in (*streams, *waiting):
            one.cancel()


async def _lists(client: httpx.AsyncClient) -> list[str]:
    """Return the paths of all GET routes without arguments in the path that answer with JSON."""
    described = (await client.get("/api/v1/openapi.json")).raise_for_status().json()
    found = []
    for path, methods in described["paths"].items():
        if "get" in methods and "{" not in path and path.startswith("/api/v1/"):
            with suppress(httpx.HTTPError):
                async with client.stream("GET", path) as response:
                    is_list = response.headers.get("content-type", "").startswith(
                        "application/json"
                    )
                    if response.status_code == httpx.codes.OK and is_list:
                        found.append(path)
    return found


async def _listen(client: httpx.AsyncClient) -> None:
    async with client.stream("GET", "/api/v1/changes", timeout=None) as response:
        response.raise_for_status()
        async for _ in response.aiter_lines():
            pass


if __name__ == "__main__":
    main()
