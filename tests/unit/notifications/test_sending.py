"""The outcomes of messages, with a stand-in for the process that sends, and with virtual time."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from triggerer.domain.notifications import NotificationText
from triggerer.notifications.sending import send_messages
from triggerer.processes.ipc import ChannelClosed
from triggerer.testing.simulation.kernel.loop import VirtualLoop

DEADLINE = timedelta(seconds=30)
TEXT = NotificationText("title", "body")

Run = Callable[[Coroutine[Any, Any, None]], None]
Send = Callable[["FakeProcess"], list[tuple[int, str | None]]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a coroutine on an event loop whose time passes at once."""
    loop = VirtualLoop(random.Random(1), 100.0, lambda: None)
    yield loop.run_until_complete
    loop.close()


class FakeProcess:
    """Replies with these frames. Then it hangs, or dies."""

    def __init__(self, frames: list[dict[str, Any]], *, dies: bool = False) -> None:
        self._frames = frames
        self._dies = dies
        self.closed_at = 0.0
        self.channel = SimpleNamespace(send=self._send, receive=self._receive)

    async def _send(self, order: dict[str, Any]) -> None:
        await checkpoint()

    async def _receive(self) -> dict[str, Any]:
        await checkpoint()
        if self._frames:
            return self._frames.pop(0)
        if self._dies:
            raise ChannelClosed(unread=False)
        await anyio.sleep_forever()
        raise AssertionError

    async def supervise(self) -> None:
        await anyio.sleep_forever()

    async def aclose(self) -> None:
        self.closed_at = anyio.current_time()


def outcome(id_: int, error: str | None = None) -> dict[str, Any]:
    return {"type": "outcome", "id": id_, "error": error}


@pytest.fixture(params=[0, 100], ids=["fast store", "slow store"])
def send(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> Send:
    """Sends messages 1 and 2 to one target, and returns the outcomes that were stored.

    A slow store takes 100 s for each outcome, which is longer than the deadline.
    """

    def send(process: FakeProcess) -> list[tuple[int, str | None]]:
        async def start(module: str, **options: Any) -> FakeProcess:
            return process

        fake = SimpleNamespace(start=start)
        monkeypatch.setattr("triggerer.notifications.sending.ChildProcess", fake)
        stored: list[tuple[int, str | None]] = []

        async def store(id_: int, error: str | None) -> None:
            await anyio.sleep(request.param)
            stored.append((id_, error))

        async def work() -> None:
            latest = anyio.current_time() + DEADLINE.total_seconds() + 1
            messages = {"chat": [(1, TEXT), (2, TEXT)]}
            await send_messages({"chat": "json://x"}, messages, store, deadline=DEADLINE)
            assert process.closed_at < latest

        run(work())
        return stored

    return send


def test_each_outcome_is_stored_even_after_the_deadline(send: Send) -> None:
    process = FakeProcess([outcome(1), outcome(2), {"type": "end"}])
    assert send(process) == [(1, None), (2, None)]


def test_only_a_message_without_an_answer_fails_at_the_deadline(send: Send) -> None:
    process = FakeProcess([outcome(1)])
    assert send(process) == [(1, None), (2, "no answer within 30 s")]


def test_a_message_without_an_answer_fails_if_the_process_dies(send: Send) -> None:
    process = FakeProcess([outcome(1)], dies=True)
    assert send(process) == [(1, None), (2, "the process that sends ended")]


def test_a_target_that_refuses_a_message_gets_no_other(send: Send) -> None:
    process = FakeProcess([outcome(1, "no"), {"type": "end"}])
    assert send(process) == [(1, "no")]


def test_a_process_that_cannot_be_started_raises_its_own_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(module: str, **options: Any) -> FakeProcess:
        raise OSError(errno.EAGAIN, "no more processes")

    fake = SimpleNamespace(start=start)
    monkeypatch.setattr("triggerer.notifications.sending.ChildProcess", fake)

    async def store(id_: int, error: str | None) -> None:
        raise AssertionError

    async def work() -> None:
        with pytest.raises(OSError, match="no more processes"):
            await send_messages(
                {"chat": "json://x"}, {"chat": [(1, TEXT)]}, store, deadline=DEADLINE
            )

    run(work())
