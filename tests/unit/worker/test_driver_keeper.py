"""The fork server opens one driver at a time, also for a process that asks again while a driver is being opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from triggerer.worker.fork_server.children import Child, Role
from triggerer.worker.fork_server.control import Control, Message
from triggerer.worker.fork_server.driver_keeper import DriverKeeper

SHARED = {"pid": 4_000_000, "trains": False}


class Server:
    """A fork server that forks nothing. `openers` has the processes that would open a driver."""

    next: Child | None = None

    def __init__(self) -> None:
        self.openers: list[Child] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.pairs: list[tuple[Control, Control]] = []

    def child(self, role: Role) -> Child:
        ours, theirs = Control.pair()
        self.pairs.append((ours, theirs))
        return Child(len(self.pairs), 0, ours, role)

    def tell(self, kind: str, **fields: Any) -> None:
        self.told.append((kind, fields))

    def after(self, seconds: float, function: Callable[[], None]) -> None: ...
    def watch(self, descriptor: int, on_ready: Callable[[], None]) -> None: ...
    def unwatch(self, descriptor: int) -> None: ...
    def show(self, lines: bytes) -> None: ...
    def replace_next(self) -> None: ...
    def preload(self, names: tuple[str, ...]) -> None: ...

    def fork_opener(self, live: Callable[[Control], None]) -> Child:
        self.openers.append(self.child(Role.OPENER))
        return self.openers[-1]

    def is_child(self, child: Child) -> bool:
        return True


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    for pair in server.pairs:
        for control in pair:
            control.close()


def ask(keeper: DriverKeeper, child: Child, number: int) -> None:
    keeper.hear(child, Message("open", {"number": number, "fresh": True}, []))


def test_a_second_request_waits_for_the_driver_that_is_being_opened(server: Server) -> None:
    """A run's request was interrupted, for example by the time limit of a task. The next task asks again."""
    keeper = DriverKeeper(server, {})
    run = server.child(Role.RUN)
    ask(keeper, run, 0)
    ask(keeper, run, 1)
    (opener,) = server.openers
    keeper.hear(opener, Message("opened", {"driver": dict(SHARED)}, []))
    keeper.on_opener_end(opener, 0)
    assert len(server.openers) == 1
    _, other_end = server.pairs[0]
    replies = [other_end.receive() for _ in range(2)]
    assert [reply and reply.fields["number"] for reply in replies] == [0, 1]
    assert server.told == [("spark", {"open": True})]


def test_an_open_driver_that_does_not_work_is_replaced(server: Server) -> None:
    keeper = DriverKeeper(server, {})
    run = server.child(Role.RUN)
    ask(keeper, run, 0)
    keeper.hear(server.openers[0], Message("opened", {"driver": dict(SHARED)}, []))
    ask(keeper, run, 1)
    keeper.on_opener_end(server.openers[0], 0)
    assert len(server.openers) == 2
