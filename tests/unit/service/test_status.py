"""A thread answers probes. While the event loop is blocked, it names the code that blocks."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio import to_thread

from triggerer.config import Settings, load_settings
from triggerer.errors import ConfigurationError, TriggererError
from triggerer.operations.status import Status, ask_service, delete_left_sockets, socket_path
from triggerer.processes.instance_ids import this_process
from triggerer.service.status import Readiness, status_served
from triggerer.service.status_server import Answer, serving, tcp_listener, unix_listener
from triggerer.store.database.opening import open_database


def settings_for(home: Path, **variables: str) -> Settings:
    return load_settings(environ={"TRIGGERER__CORE__HOME": str(home), **variables})


@contextmanager
def served(home: Path, routes: dict[str, Any]) -> Iterator[None]:
    with unix_listener(socket_path(home, "here:1")) as listener, serving(routes, [listener]):
        yield


async def ask(home: Path, target: str) -> tuple[int, Any]:
    """Ask in a thread, as others would ask from another process."""
    status: Status = await to_thread.run_sync(ask_service, home, target)
    return status.status, json.loads(status.body)


async def test_a_blocked_loop_is_named_within_a_second_and_alive_again_afterwards(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path)
    answers: list[tuple[float, tuple[int, Any]]] = []

    async def block() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("watcher[orders/slow]")
        began = time.monotonic()

        def probe() -> None:
            status = ask_service(tmp_path, "/livez")
            answers.append((time.monotonic() - began, (status.status, json.loads(status.body))))

        prober = threading.Thread(target=probe)
        prober.start()
        time.sleep(2)  # the blockage under test
        prober.join()

    async with open_database(settings.database.url, home=tmp_path, create=True) as database:
        with status_served(settings, database, Readiness()):
            assert await ask(tmp_path, "/livez") == (200, {"status": "alive"})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(block)
            ((seconds, (status, found)),) = answers
            assert seconds < 1.5
            assert status == 503
            assert (found["status"], found["trigger"]) == ("blocked", "orders/slow")
            assert "time.sleep(2)" in found["where"]
            assert await ask(tmp_path, "/livez") == (200, {"status": "alive"})


async def test_a_process_is_ready_once_it_has_started_and_while_it_holds_its_leases(
    tmp_path: Path,
) -> None:
    settings = settings_for(tmp_path)
    readiness = Readiness()
    holds = [True]
    readiness.add("the lease on streams", lambda: holds[0])
    async with open_database(settings.database.url, home=tmp_path, create=True) as database:
        with status_served(settings, database, readiness):
            missing = {"status": "not ready", "missing": ["the start"]}
            assert await ask(tmp_path, "/readyz") == (503, missing)
            readiness.is_started = True
            assert await ask(tmp_path, "/readyz") == (200, {"status": "ready"})
            holds[0] = False
            status, found = await ask(tmp_path, "/readyz")
            assert (status, found["missing"]) == (503, ["the lease on streams"])
            text = (await to_thread.run_sync(ask_service, tmp_path, "/metrics")).body.decode()
            assert "triggerer_database_up 1.0" in text
    with pytest.raises(TriggererError, match="no service in"):
        ask_service(tmp_path, "/livez")


async def test_the_address_in_metrics_serves_the_same(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = settings_for(tmp_path, TRIGGERER__METRICS__PORT=str(port))

    def get() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            answer = b""
            while part := connection.recv(65_536):
                answer += part
            return answer

    async with open_database(settings.database.url, home=tmp_path, create=True) as database:
        with status_served(settings, database, Readiness()):
            answer = await to_thread.run_sync(get)
            assert answer.startswith(b"HTTP/1.0 200")
            assert answer.endswith(b'{"status": "alive"}\n')
            with pytest.raises(ConfigurationError, match="Address already in use"):
                tcp_listener("127.0.0.1", port)


def test_a_route_that_fails_is_a_500_an_unknown_path_a_404_and_head_has_no_body(
    tmp_path: Path,
) -> None:
    def fail() -> Answer:
        raise ValueError("a bug")

    routes = {"/fails": fail, "/works": lambda: Answer(200, "text/plain", b"yes")}
    with served(tmp_path, routes):
        assert ask_service(tmp_path, "/fails").status == 500
        assert ask_service(tmp_path, "/other").status == 404
        assert ask_service(tmp_path, "/works?x=1") == Status(200, "text/plain", b"yes")


def test_clients_that_say_nothing_keep_no_probe_out(tmp_path: Path) -> None:
    routes = {"/works": lambda: Answer(200, "text/plain", b"yes")}
    with served(tmp_path, routes):
        silent = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for one in silent:
            one.connect(str(socket_path(tmp_path, "here:1")))
            one.sendall(b"GET /wo")
        for _ in range(3):
            assert ask_service(tmp_path, "/works").body == b"yes"
        for one in silent:
            one.close()


def test_a_moment_without_descriptors_does_not_end_the_answers() -> None:
    class Starved(socket.socket):
        failures = 2

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    with Starved() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with (
            serving({"/works": lambda: Answer(200, "text/plain", b"yes")}, [listener]),
            socket.create_connection(listener.getsockname(), timeout=10) as connection,
        ):
            connection.sendall(b"GET /works HTTP/1.0\r\n\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.0 200")


def test_only_this_user_may_connect_and_left_sockets_are_deleted(tmp_path: Path) -> None:
    gone = 2**22 + 1
    left = socket_path(tmp_path, f"{this_process().rpartition(':')[0]}:{gone}")
    # A host that shares the home may have a process with this id.
    elsewhere = socket_path(tmp_path, f"elsewhere:{gone}")
    with unix_listener(socket_path(tmp_path, this_process())) as listener:
        assert listener.fileno() >= 0
        assert socket_path(tmp_path, this_process()).stat().st_mode & 0o777 == 0o600
        for path in (left, elsewhere, tmp_path / "status-x.sock"):
            path.touch()
        delete_left_sockets(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            [f"status-elsewhere:{gone}.sock", f"status-{this_process()}.sock", "status-x.sock"]
        )


def test_the_socket_of_a_process_in_another_container_with_this_host_name_stays(
    tmp_path: Path,
) -> None:
    """The containers share the home. A process of another container has no process id here."""
    process = f"{this_process().rpartition(':')[0]}:{2**22 + 1}"
    with unix_listener(socket_path(tmp_path, process)):
        delete_left_sockets(tmp_path)
        assert socket_path(tmp_path, process).exists()
    assert not socket_path(tmp_path, process).exists()
