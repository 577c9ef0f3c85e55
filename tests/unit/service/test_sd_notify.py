"""The messages to the service manager, on real sockets and with virtual time."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from tests.services.notify_socket import NotifySocket
from triggerer.service.sd_notify import SystemdNotifier
from triggerer.testing.simulation.kernel.loop import VirtualLoop

MINUTE = timedelta(minutes=1)


Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(str(tmp_path / "notify")) as manager:
        yield manager


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a coroutine function on an event loop whose time passes at once."""
    loop = VirtualLoop(random.Random(1), 100.0, lambda: None)
    yield lambda function: loop.run_until_complete(_awaited(function))
    loop.close()


async def _awaited(function: Callable[[], Awaitable[None]]) -> None:
    await function()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_it_is_ready_within_the_block_and_stops_at_its_end(
    tmp_path: Path, run: Run, kind: str
) -> None:
    address = str(tmp_path / "notify")
    if kind == "abstract":
        address = f"@{address}"
    notifier = SystemdNotifier(address)

    async def serve() -> None:
        notifier.tell_status("Starting")
        assert manager.read() == [["STATUS=Starting"]]
        async with notifier.serving("Running"):
            assert manager.read() == [["READY=1", "STATUS=Running"]]
            await anyio.sleep(3600)
            assert manager.read() == []
        assert manager.read() == [["STOPPING=1", "STATUS=Stopping"]]

    with NotifySocket(address) as manager:
        run(serve)


def test_the_watchdog_is_pinged_at_half_its_time(manager: NotifySocket, run: Run) -> None:
    notifier = SystemdNotifier(manager.address, MINUTE)

    async def serve() -> None:
        async with notifier.serving("Running"):
            await anyio.sleep(1)
            assert manager.read() == [["READY=1", "STATUS=Running"], ["WATCHDOG=1"]]
            for _ in range(3):
                await anyio.sleep(30)
                assert manager.read() == [["WATCHDOG=1"]]
        manager.read()
        await anyio.sleep(3600)
        assert manager.read() == []

    run(serve)


def test_a_failure_is_told_as_stopping_and_raised(manager: NotifySocket, run: Run) -> None:
    notifier = SystemdNotifier(manager.address)

    async def fail() -> None:
        async with notifier.serving("Running"):
            raise LookupError("mine")

    with pytest.RaisesGroup(pytest.RaisesExc(LookupError, match="mine")):
        run(fail)
    assert manager.read()[-1] == ["STOPPING=1", "STATUS=Stopping"]


def test_the_first_reason_to_stop_stands_and_nothing_is_ready_after_it(
    manager: NotifySocket, run: Run
) -> None:
    notifier = SystemdNotifier(manager.address)

    async def serve() -> None:
        notifier.tell_stopping("Stopping: SIGTERM")
        async with notifier.serving("Running"):
            pass

    run(serve)
    assert manager.read() == [["STOPPING=1", "STATUS=Stopping: SIGTERM"]]


def test_a_manager_that_does_not_read_holds_up_nothing_and_is_told_once_it_does(
    manager: NotifySocket, run: Run
) -> None:
    notifier = SystemdNotifier(manager.address, MINUTE)

    async def serve() -> None:
        manager.fill()
        async with notifier.serving("Running"):
            await anyio.sleep(10)
            assert {line for lines in manager.read() for line in lines} == {"X=1"}
            await anyio.sleep(2)
            assert manager.read() == [["READY=1", "STATUS=Running", "WATCHDOG=1"]]
            await anyio.sleep(30)
            assert manager.read() == [["WATCHDOG=1"]]

    with capture_logs() as logs:
        run(serve)
    assert [log["event"] for log in logs] == ["the service manager cannot be reached"]


def test_a_manager_that_comes_later_is_told_what_it_did_not_hear(tmp_path: Path, run: Run) -> None:
    address = str(tmp_path / "notify")
    notifier = SystemdNotifier(address)

    async def serve() -> None:
        async with notifier.serving("Running"):
            await anyio.sleep(10)
            with NotifySocket(address) as manager:
                await anyio.sleep(2)
                assert manager.read() == [["READY=1", "STATUS=Running"]]

    with capture_logs() as logs:
        run(serve)
    # One line for each time that the manager was away.
    assert [list(log["unsent"]) for log in logs] == [["READY", "STATUS"], ["STOPPING", "STATUS"]]


@pytest.mark.parametrize("watchdog", [None, timedelta(hours=1)], ids=["plain", "watchdog"])
def test_a_status_that_the_manager_does_not_accept_is_sent_again_each_second(
    manager: NotifySocket, run: Run, watchdog: timedelta | None
) -> None:
    notifier = SystemdNotifier(manager.address, watchdog)

    async def serve() -> None:
        async with notifier.serving("Running"):
            await anyio.sleep(60)
            manager.read()
            manager.fill()
            notifier.tell_status("The database is away")
            await anyio.sleep(10)
            manager.read()
            await anyio.sleep(2)
            (lines,) = manager.read()
            assert "STATUS=The database is away" in lines
            await anyio.sleep(60)
            assert manager.read() == []

    with capture_logs():
        run(serve)


def test_without_a_manager_nothing_happens(run: Run) -> None:
    notifier = SystemdNotifier.from_environment({})

    async def serve() -> None:
        notifier.tell_status("Starting")
        async with notifier.serving("Running"):
            await anyio.sleep(3600)
            assert len(asyncio.all_tasks()) == 2

    with capture_logs() as logs:
        run(serve)
    assert logs == []


def ping_of(environ: dict[str, str], manager: NotifySocket, run: Run) -> bool:
    """Whether a service with this environment pings."""
    notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": manager.address, **environ})

    async def serve() -> None:
        async with notifier.serving("Running"):
            await anyio.sleep(3600)

    run(serve)
    return ["WATCHDOG=1"] in manager.read()


@pytest.mark.parametrize(
    ("pid", "pings"),
    [(None, True), (os.getpid(), True), (os.getpid() + 1, False)],
    ids=["unnamed", "this", "another"],
)
def test_it_pings_only_where_the_watchdog_means_this_process(
    manager: NotifySocket, run: Run, pid: int | None, pings: bool
) -> None:
    environ = {"WATCHDOG_USEC": "7200000000"}
    if pid is not None:
        environ["WATCHDOG_PID"] = str(pid)
    assert ping_of(environ, manager, run) is pings


@pytest.mark.parametrize("usec", ["", "0", "-5", "soon", "²"])
def test_a_watchdog_without_a_time_is_reported_and_ignored(
    manager: NotifySocket, run: Run, usec: str
) -> None:
    with capture_logs() as logs:
        assert not ping_of({"WATCHDOG_USEC": usec}, manager, run)
    assert [log["event"] for log in logs] == [
        "WATCHDOG_USEC is no number of microseconds and is ignored"
    ]


def test_children_do_not_inherit_what_the_manager_has_said(manager: NotifySocket) -> None:
    environ: dict[str, Any] = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "1000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    SystemdNotifier.from_environment(environ)
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize("address", ["vsock:2:1234", "notify"])
def test_a_socket_of_another_kind_is_reported_and_ignored(run: Run, address: str) -> None:
    notifier: SystemdNotifier

    async def serve() -> None:
        async with notifier.serving("Running"):
            await anyio.sleep(3600)

    with capture_logs() as logs:
        notifier = SystemdNotifier.from_environment({"NOTIFY_SOCKET": address})
        run(serve)
    assert [log["event"] for log in logs] == ["NOTIFY_SOCKET names no Unix socket and is ignored"]
