"""On a real Spark Connect server, `ConnectLauncher` finds a dead client's session by its tag, and ends it for good."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.availability import skip_or_fail
from tests.services.clusters.spark_connect import ConnectServer, open_connect_server
from tests.services.process import ServiceUnavailable
from tests.worker.spark.processes import start_python
from triggerer.config import SparkSettings
from triggerer.domain.attempt_states import AttemptState
from triggerer.worker.launchers import Absent, Ended, Handle, Running, Unknown
from triggerer.worker.launchers.connect import ConnectLauncher

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

_CLIENT = """
import uuid
from pyspark.sql.functions import udf
from triggerer.worker.spark.sessions.connect import open_connect

marks = {marks!r}
session = open_connect(SparkSettings(mode="connect", remote={remote!r}), tag={tag!r})

@udf("int")
def mark(n):
    for _ in range(60):
        open(os.path.join(marks, uuid.uuid4().hex), "w").close()
        time.sleep(0.2)
    return n

def tried(work):
    try:
        return work()
    except Exception as error:
        return str(error)

print(tried(lambda: session.range(0, 40, 1, 40).select(mark("id").alias("n")).agg({{"n": "sum"}}).first()))
print(tried(lambda: session.range(3).count()))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ConnectServer]:
    try:
        with open_connect_server() as running:
            yield running
    except ServiceUnavailable as absent:
        skip_or_fail(str(absent))


class Client:
    """A client process. Its session has a tag, and its operation leaves marks."""

    def __init__(self, server: ConnectServer, folder: Path, tag: str) -> None:
        self.marks = folder / "marks"
        self.marks.mkdir()
        code = _CLIENT.format(marks=str(self.marks), remote=server.remote, tag=tag)
        self.process = start_python(code, folder)

    @property
    def count(self) -> int:
        return sum(1 for _ in self.marks.iterdir())

    def until_marks(self, more_than: int) -> None:
        deadline = time.monotonic() + 120
        while self.count <= more_than:
            assert self.process.poll() is None or self.process.returncode < 0
            assert time.monotonic() < deadline
            time.sleep(0.05)  # the server's Python workers send no notice of a mark


def launcher(server: ConnectServer) -> ConnectLauncher:
    return ConnectLauncher(SparkSettings(mode="connect", remote=server.remote))


@pytest.mark.soak
def test_the_work_of_a_killed_client_goes_on_until_its_session_is_stopped(
    server: ConnectServer, tmp_path: Path
) -> None:
    client, places = Client(server, tmp_path, "killed"), launcher(server)
    client.until_marks(4)
    client.process.kill()
    client.process.communicate()
    client.until_marks(client.count + 4)
    found = places.find("killed")
    assert isinstance(found, Running)
    stopped = places.stop(found.handle)
    assert isinstance(stopped, Ended)
    assert (stopped.state, stopped.reason) == (
        AttemptState.KILLED,
        f"1 operation stopped on {server.remote}",
    )
    left = client.count
    time.sleep(2)  # no event shows that the marks have stopped
    assert client.count == left
    assert places.find("killed") == Absent()
    assert places.stop(found.handle) == Absent()


@pytest.mark.soak
def test_a_client_that_was_cut_off_can_begin_nothing_after_its_session_was_stopped(
    server: ConnectServer, tmp_path: Path
) -> None:
    client, places = Client(server, tmp_path, "cut off"), launcher(server)
    client.until_marks(4)
    client.process.send_signal(signal.SIGSTOP)
    assert isinstance(places.stop(Handle("cut off")), Ended)
    left = client.count
    client.process.send_signal(signal.SIGCONT)
    shown, _ = client.process.communicate(timeout=120)
    assert "OPERATION_CANCELED" in shown
    assert "SESSION_CLOSED" in shown
    assert client.count == left


@pytest.mark.soak
def test_a_server_that_is_away_knows_nothing_and_one_that_was_restarted_has_nothing(
    server: ConnectServer,
) -> None:
    places = launcher(server)
    server.kill()
    away = places.find("before")
    assert isinstance(away, Unknown)
    assert away.reason == f"the Spark Connect server {server.remote} does not answer"
    assert places.stop(Handle("before")) == away
    server.start()
    stopped = places.stop(Handle("before"))
    assert isinstance(stopped, Ended)
    assert stopped.state is AttemptState.LOST
    assert places.find("before") == Absent()


@pytest.mark.soak
def test_a_server_that_hangs_is_not_waited_for_without_end(
    server: ConnectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triggerer.worker.launchers.connect._ANSWER_S", 1.0)
    (process,) = _java_of(server)
    process.send_signal(signal.SIGSTOP)
    try:
        found = launcher(server).find("hangs")
    finally:
        process.send_signal(signal.SIGCONT)
    assert isinstance(found, Unknown)
    assert "gave no answer within 1 s" in found.reason


def _java_of(server: ConnectServer) -> list[subprocess.Popen[bytes]]:
    import psutil

    port = server.remote.rpartition(":")[2]
    return [
        process
        for process in psutil.process_iter(["cmdline", "name"])
        if process.info["name"] == "java" and f"binding.port={port}" in str(process.info["cmdline"])
    ]
