"""`triggerer api` in a process of its own, beside other services on PostgreSQL."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.full
DAGS = """
from triggerer import DAG, Asset, task

with DAG("daily", schedule=Asset("x-test://orders", name="orders")):

    @task
    def work():
        print("done")

    work()
"""
PARTS = ("dag-processor", "scheduler", "executor", "api")


def test_an_api_alone_sees_the_other_services_and_stops_in_order(
    postgres_url: str, tmp_path: Path
) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "a.py").write_text(DAGS)
    home, config = tmp_path / "home", tmp_path / "triggerer.toml"
    config.write_text(
        f'[core]\nhome = "{home}"\ndags_folder = "{tmp_path}/dags"\n'
        f'[database]\nurl = "{postgres_url}"\n[api]\nport = 0\n'
    )
    running = []
    try:
        for part in PARTS:
            with (tmp_path / f"{part}.log").open("wb") as log:
                command = [sys.executable, "-m", "triggerer", part, "--config", str(config)]
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
        wait_for(lambda: (home / "api-token").exists() and (home / "api-address").exists())
        headers = {"Authorization": f"Bearer {(home / 'api-token').read_text().strip()}"}
        address = (home / "api-address").read_text().strip()
        with httpx.Client(base_url=f"{address}/api/v1", headers=headers, timeout=30) as client:
            wait_for(lambda: bool(client.get("/dags").json()["items"]))
            wait_for(lambda: len(client.get("/instances").json()["items"]) == len(PARTS))
            assert client.post("/assets/events", json={"asset": "orders"}).status_code == 201
            wait_for(lambda: [one["state"] for one in runs(client)] == ["success"])
            run_id = runs(client)[0]["run_id"].replace("+", "%2B")
            assert "done" in client.get(f"/dags/daily/dagRuns/{run_id}/logs").text
        running[-1].send_signal(signal.SIGTERM)
        assert running[-1].wait(20) == 0, (tmp_path / "api.log").read_text()
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(60)


def runs(client: httpx.Client) -> list[dict[str, str]]:
    found: list[dict[str, str]] = client.get("/runs").json()["items"]
    return found


def wait_for(is_true: object, *, within_s: float = 60) -> None:
    assert callable(is_true)
    deadline = time.monotonic() + within_s
    while True:
        try:
            if is_true():
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)  # other processes answer over HTTP
