"""The API beside a whole service, over real sockets."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import airflow_client.client as airflow
import httpx
import psutil
import pytest
from airflow_client.client.api.asset_api import AssetApi
from airflow_client.client.api.dag_api import DAGApi
from airflow_client.client.api.dag_run_api import DagRunApi
from airflow_client.client.exceptions import NotFoundException
from airflow_client.client.models import (
    CreateAssetEventsBody,
    DAGPatchBody,
    TriggerDAGRunPostBody,
)

from tests.services.sample_service import TICKS, SampleService, open_sample_service
from tests.services.tcp_proxy import open_tcp_proxy

pytestmark = pytest.mark.full
V1 = "/api/v1"

DAGS = """
from triggerer import DAG, Asset, task

orders = Asset("orders", uri="x-test://orders")

with DAG("daily"):

    @task
    def work():
        for number in range(3):
            print(f"line {number}")

    work()
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleService]:
    folder = tmp_path_factory.mktemp("service")
    with open_sample_service(folder, dags={"a.py": DAGS}, settings="rate_limit = 10000\n") as one:
        yield one


def api_process(service: SampleService) -> psutil.Process:
    """Return the child process that serves the API."""
    for child in psutil.Process(service.pid).children(recursive=True):
        if "triggerer.api.child" in " ".join(child.cmdline()):
            return child
    raise AssertionError("no process serves the API")


def kill_api(service: SampleService) -> float:
    """Kill the API, and return the seconds until it answers again."""
    killed = api_process(service)
    began = time.monotonic()
    killed.kill()
    with service.client() as client:
        while True:
            try:
                if client.get(f"{V1}/dags").status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.05)  # the API starts again in another process
    took = time.monotonic() - began
    assert api_process(service).pid != killed.pid
    return took


def test_the_api_lets_the_stream_and_the_runs_go_first(service: SampleService) -> None:
    with service.client() as client:
        client.get(f"{V1}/dags")
    assert api_process(service).nice() == psutil.Process(service.pid).nice() + 10


@pytest.mark.parametrize(
    "within_s",
    [
        # The start takes longer while other tests use the machine.
        30,
        pytest.param(5, marks=pytest.mark.soak),
    ],
)
def test_a_killed_api_is_back_in_time(service: SampleService, within_s: float) -> None:
    with service.client() as client:
        assert client.get(f"{V1}/dags").status_code == 200
    assert kill_api(service) < within_s


@pytest.mark.parametrize(
    ("posts", "clients"), [(60, 6), pytest.param(1000, 20, marks=pytest.mark.soak)]
)
def test_posts_with_ten_keys_through_cut_connections_make_ten_events(
    service: SampleService, posts: int, clients: int
) -> None:
    port = int(service.address.rpartition(":")[2])
    statuses: list[int] = []
    with open_tcp_proxy(port) as proxy:
        done = threading.Event()

        def cut() -> None:
            random = Random(1)
            answered = 0
            while not done.wait(random.uniform(0.2, 0.8)):
                # Cut the connections only after a new answer. Otherwise, on a busy machine, no request might succeed.
                if len(statuses) > answered:
                    answered = len(statuses)
                    proxy.refuse()
                    proxy.heal()

        def send(sender: int) -> None:
            random = Random(sender)
            with httpx.Client(timeout=20) as client:
                for _ in range(posts // clients):
                    number = random.randrange(10)
                    while True:
                        try:
                            answer = client.post(
                                f"http://127.0.0.1:{proxy.port}{V1}/assets/events",
                                json={"asset": "orders", "extra": {"n": number}},
                                headers={
                                    "Authorization": f"Bearer {service.token}",
                                    "Idempotency-Key": f"key-{number}",
                                },
                            )
                        except httpx.HTTPError:
                            continue
                        if answer.status_code == 503:
                            time.sleep(0.05)
                            continue
                        statuses.append(answer.status_code)
                        break

        cutter = threading.Thread(target=cut)
        cutter.start()
        with ThreadPoolExecutor(clients) as senders:
            list(senders.map(send, range(clients)))
        done.set()
        cutter.join()
    with service.client() as client:
        page = client.get(f"{V1}/assets/events", params={"asset": "orders", "count": True}).json()
    assert len(statuses) == posts
    assert set(statuses) <= {200, 201}
    assert page["count"]["value"] == 10
    assert sorted(event["extra"]["n"] for event in page["items"]) == list(range(10))


def test_airflows_own_client_emits_triggers_reads_and_pauses(service: SampleService) -> None:
    got = httpx.post(
        f"{service.address}/auth/token", json={"username": "me", "password": service.token}
    )
    configuration = airflow.Configuration(
        host=service.address, access_token=got.json()["access_token"]
    )
    with airflow.ApiClient(configuration) as client:
        listed = AssetApi(client).get_assets(limit=10)
        orders = next(asset for asset in listed.assets if asset.name == "orders")
        event = AssetApi(client).create_asset_event(
            CreateAssetEventsBody(asset_id=orders.id, extra={"by": "airflow"})
        )
        assert (event.asset_id, event.uri, event.extra) == (
            orders.id,
            "x-test://orders",
            {"by": "airflow"},
        )
        runs = DagRunApi(client)
        run = runs.trigger_dag_run("daily", TriggerDAGRunPostBody(dag_run_id="from_airflow"))
        assert run.dag_run_id == "from_airflow"
        deadline = time.monotonic() + 30
        while runs.get_dag_run("daily", "from_airflow").state != "success":
            assert time.monotonic() < deadline
            time.sleep(0.1)  # Airflow's client has to poll
        assert DAGApi(client).patch_dag("daily", DAGPatchBody(is_paused=True)).is_paused
        assert not DAGApi(client).patch_dag("daily", DAGPatchBody(is_paused=False)).is_paused
        with pytest.raises(NotFoundException):
            runs.get_dag_run("daily", "nothing")


def test_a_followed_log_ends_with_the_run_and_hints_name_its_dag(service: SampleService) -> None:
    hints: list[str] = []
    with service.client() as client, service.client() as listener:

        def listen() -> None:
            with listener.stream("GET", f"{V1}/changes") as stream:
                for line in stream.iter_lines():
                    hints.append(line)
                    if "daily" in line:
                        return

        thread = threading.Thread(target=listen)
        thread.start()
        run = client.post(f"{V1}/dags/daily/dagRuns", json={}).json()
        path = f"{V1}/dags/daily/dagRuns/{run['run_id'].replace('+', '%2B')}"
        deadline = time.monotonic() + 30
        while client.get(f"{path}/logs").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)  # the run's process creates the log
        log = client.get(f"{path}/logs", params={"follow": True}, timeout=30).text
        thread.join(20)
    assert "line 0\nline 1\nline 2\n" in log
    assert any("daily" in line for line in hints)


@pytest.mark.parametrize("number", [200])
def test_connections_that_send_nothing_and_readers_that_are_slow_keep_nobody_waiting(
    service: SampleService, number: int
) -> None:
    host, port = "127.0.0.1", int(service.address.rpartition(":")[2])
    silent = [socket.create_connection((host, port)) for _ in range(number)]
    slow = socket.create_connection((host, port))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    slow.sendall(f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    try:
        with service.client() as client:
            began = time.monotonic()
            for _ in range(20):
                slow.recv(1)
                assert client.get(f"{V1}/overview").status_code == 200
            assert time.monotonic() - began < 10
    finally:
        for one in (*silent, slow):
            one.close()


@pytest.mark.soak
def test_ten_thousand_silent_connections_are_gone_after_fifteen_seconds(tmp_path: Path) -> None:
    dags = {"ticks.py": TICKS}
    settings = "rate_limit = 10000\n[metrics]\nport = 19120\n"
    with open_sample_service(tmp_path, dags=dags, settings=settings) as service:
        silent: list[socket.socket] = []
        port = int(service.address.rpartition(":")[2])
        try:
            with service.client() as client:
                before = newest_tick(client)
                silent += [
                    socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(10_000)
                ]
                assert api_process(service).num_fds() < 1_200
                assert httpx.get("http://127.0.0.1:19120/livez").status_code == 200
                began = time.monotonic()
                while answers_late(service):
                    assert time.monotonic() - began < 30
                # The stream ticked every second meanwhile, although the API had no room for connections.
                after = newest_tick(client)
        finally:
            for one in silent:
                one.close()
    assert after["n"] > before["n"]
    assert "Traceback" not in (tmp_path / "service.log").read_text()


def newest_tick(client: httpx.Client) -> dict[str, int]:
    """Return the extra of the ticking stream's newest event. The number `n` is 0 if there is no event."""
    found = client.get(f"{V1}/assets/events", params={"asset": "ticks", "limit": 1}).json()["items"]
    extra: dict[str, int] = found[0]["extra"] if found else {"n": 0}
    return extra


def answers_late(service: SampleService) -> bool:
    """Send a request over a new connection. Return True if the API does not answer with 200 within 5 s."""
    try:
        with service.client() as client:
            return client.get(f"{V1}/overview", timeout=5).status_code != 200
    except httpx.HTTPError:
        return True


def test_a_taken_port_is_an_ordinary_error(service: SampleService, tmp_path: Path) -> None:
    port = int(service.address.rpartition(":")[2])
    with (
        pytest.raises(RuntimeError, match=r"cannot listen on .*[\s\S]*\[api\] port"),
        open_sample_service(tmp_path, dags={}, port=port),
    ):
        pass


def test_a_stop_with_twenty_open_streams_is_a_normal_one(tmp_path: Path) -> None:
    ended: list[str] = []
    with open_sample_service(tmp_path, dags={"a.py": DAGS}) as service:

        def listen() -> None:
            with service.client() as client, client.stream("GET", f"{V1}/changes") as stream:
                begun.release()
                for _ in stream.iter_lines():
                    pass
                ended.append("in order")

        begun = threading.Semaphore(0)
        threads = [threading.Thread(target=listen) for _ in range(20)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=20)
        process = psutil.Process(service.pid)
        began = time.monotonic()
        os.kill(service.pid, signal.SIGTERM)
        process.wait(20)
        took = time.monotonic() - began
        for thread in threads:
            thread.join(5)
    assert ended == ["in order"] * 20
    assert took < 5, f"it took {took:.1f} s"
    assert not (service.home / "api-address").exists()
    log = (tmp_path / "service.log").read_text()
    assert "Traceback" not in log
