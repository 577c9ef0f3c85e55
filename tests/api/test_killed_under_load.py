"""The API is killed under the load of many clients and starts again. Messages become events without delay meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from tests.api.test_live import V1, kill_api
from tests.services.sample_service import TICKS, SampleService, open_sample_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

KILLS = 3
CLIENTS = 8
REQUESTS_A_SECOND = 50
HEALTHY_S = 11
"""A process that lived this long before it failed is restarted at once."""
DAGS = (
    TICKS.partition("report = Asset")[0].replace("asyncio.sleep(1)", "asyncio.sleep(0.02)")
    + """
with DAG("paused", schedule=[ticks], is_paused_upon_creation=True):

    @task
    def idle():
        pass

    idle()
"""
)


def test_no_stream_notices_that_the_api_is_killed_under_load(tmp_path: Path) -> None:
    with open_sample_service(
        tmp_path, dags={"a.py": DAGS}, settings="rate_limit = 1000000\n"
    ) as service:
        with service.client() as client:
            while newest(client) < 50:
                time.sleep(0.1)  # the events are made in another process
        with asking(service) as answers:
            time.sleep(HEALTHY_S)  # measure before the kills, for comparison
            first = len(answers)
            at_rest = last_of(service)
            took = [kill(service) for _ in range(KILLS)]
            killed = last_of(service)
            answered = len(answers) - first
        with service.client() as client:
            before, during = late(client, 50, at_rest), late(client, at_rest, killed)
    print(f"load {os.getloadavg()[0]:.1f}; back after {[round(one, 2) for one in took]} s")
    print(f"{first} answers in {HEALTHY_S} s before, {answered} during the kills")
    print(f"lateness p50/p99/max before {shown(before)}, during {shown(during)} ms")
    assert max(took) < 5
    assert percentile(during, 0.99) < max(0.1, 2 * percentile(before, 0.99))


def kill(service: SampleService) -> float:
    """Kill the API, wait until the service has forgotten the failure, and return the seconds until the API answered."""
    took = kill_api(service)
    time.sleep(HEALTHY_S)  # a second kill before that would count as a repeated failure
    return took


@contextmanager
def asking(service: SampleService) -> Iterator[list[int]]:
    """Let many clients request a list at a fixed rate until the block ends. Yield the statuses of their answers."""
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        with service.client() as client:
            while not stop.is_set():
                with suppress(httpx.HTTPError):
                    answers.append(client.get(f"{V1}/assets/events?limit=100").status_code)
                stop.wait(CLIENTS / REQUESTS_A_SECOND)

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def last_of(service: SampleService) -> int:
    with service.client() as client:
        return newest(client)


def newest(client: httpx.Client) -> int:
    """Return the number of the newest tick; 0 if there is none."""
    found = client.get(f"{V1}/assets/events", params={"asset": "ticks", "limit": 1})
    items = found.json().get("items") or [{"extra": {"n": 0}}]
    return int(items[0]["extra"]["n"])


def late(client: httpx.Client, after: int, to: int) -> list[float]:
    """Return the sorted delays, in seconds, of the events of ticks `after` + 1 to `to`. A tick is a numbered message.

    Raises:
        KeyError: A tick has no event.
    """
    found: dict[int, float] = {}
    query: dict[str, str | int] = {"asset": "ticks", "limit": 1_000}
    while True:
        page = client.get(f"{V1}/assets/events", params=query).json()
        for event in page["items"]:
            at = datetime.fromisoformat(event["extra"]["at"])
            stored = datetime.fromisoformat(event["timestamp"])
            found[event["extra"]["n"]] = (stored - at).total_seconds()
        if not page["next_cursor"] or min(found) <= after:
            break
        query["cursor"] = page["next_cursor"]
    return sorted(found[number] for number in range(after + 1, to + 1))


def percentile(sizes: list[float], share: float) -> float:
    return sizes[min(len(sizes) - 1, int(len(sizes) * share))]


def shown(sizes: list[float]) -> str:
    return "/".join(
        f"{1_000 * one:.1f}" for one in (percentile(sizes, 0.5), percentile(sizes, 0.99), sizes[-1])
    )
