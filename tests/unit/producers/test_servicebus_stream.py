"""A stream of Service Bus whose receivers do not open, or break at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from azure.servicebus.exceptions import ServiceBusServerBusyError

from producers.servicebus import link as link_module
from producers.servicebus import stream as stream_module
from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import RequiresSessions
from producers.servicebus.settings import ServiceBusSettings
from producers.servicebus.stream import Stream
from triggerer.errors import BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff


class SilentSdk:
    """A double of `sdk.client`. The entity requires sessions, and the wait for a session never ends."""

    Client: Any

    def __init__(self) -> None:
        self.Client = lambda _: self

    def receiver(self, entity: EntityPath, *, session: bool, wait_s: float | None) -> Any:
        return session

    async def open_receiver(self, is_for_session: bool) -> None:
        if not is_for_session:
            raise RequiresSessions("the queue requires sessions")
        await anyio.sleep_forever()

    async def close(self, receiver: Any) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def test_the_error_says_how_long_a_session_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_module, "sdk", SilentSdk())
    monkeypatch.setattr(stream_module, "_OPEN_TIMEOUT_S", 0.01)
    monkeypatch.setattr(stream_module, "_NEXT_SESSION_WAIT_S", 0.02)
    monkeypatch.setattr(stream_module, "Backoff", lambda **_: Backoff(first=0.001, longest=0.001))
    settings = ServiceBusSettings(fully_qualified_namespace="example.test", connect_timeout_s=0.001)
    with pytest.raises(BrokerUnavailable, match=r"no answer in 0\.03 s$"), anyio.fail_after(5):
        await Stream(EntityPath("orders"), settings, lambda _: None).run()


class BreakingSdk:
    """A double of `sdk.client`. Receivers open, and break while they wait for messages.

    Args:
        requires_session: The entity requires sessions. Then each receiver accepts the session "one".
        breaks: The number of receivers that break. The other receivers work, and no message comes.
    """

    Client: Any

    def __init__(self, *, requires_session: bool, breaks: float = float("inf")) -> None:
        self.Client = lambda _: self
        self.credits: list[int] = []
        self.works = anyio.Event()
        self._requires_session = requires_session
        self._breaks = breaks

    def receiver(self, entity: EntityPath, *, session: bool, wait_s: float | None) -> Any:
        locked_until = datetime.now(UTC) + timedelta(days=1)
        return SimpleNamespace(
            is_for_session=session,
            session=SimpleNamespace(session_id="one", locked_until_utc=locked_until),
        )

    async def open_receiver(self, receiver: Any) -> None:
        await checkpoint()
        if receiver.is_for_session != self._requires_session:
            raise RequiresSessions("the queue requires sessions")

    def session_id_of(self, receiver: Any) -> str:
        return str(receiver.session.session_id)

    async def listen(self, receiver: Any, *, credit: int, wait_s: float) -> list[Any]:
        self.credits.append(credit)
        if len(self.credits) <= self._breaks:
            raise ServiceBusServerBusyError(message="the namespace is throttled")
        self.works.set()
        await anyio.sleep(wait_s)
        return []

    async def close(self, receiver: Any) -> None:
        pass

    async def aclose(self) -> None:
        pass


def brief_delays(**_: Any) -> Backoff:
    return Backoff(first=0.001, longest=0.001)


def stream_on(
    monkeypatch: pytest.MonkeyPatch,
    sdk: BreakingSdk,
    make_backoff: Callable[..., Backoff] = brief_delays,
    **settings: Any,
) -> Stream:
    for module in (stream_module, link_module):
        monkeypatch.setattr(module, "sdk", sdk)
    monkeypatch.setattr(stream_module, "Backoff", make_backoff)
    used = ServiceBusSettings(fully_qualified_namespace="example.test", **settings)
    return Stream(EntityPath("orders"), used, lambda _: None)


async def run_until_it_works(stream: Stream, sdk: BreakingSdk) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        with anyio.fail_after(5):
            await sdk.works.wait()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("requires_session", [False, True])
async def test_receivers_that_all_break_at_once_end_the_stream_with_an_error(
    monkeypatch: pytest.MonkeyPatch, requires_session: bool
) -> None:
    sdk = BreakingSdk(requires_session=requires_session)
    stream = stream_on(monkeypatch, sdk, connect_timeout_s=0.05)
    with pytest.raises(BrokerUnavailable, match="throttled"), anyio.fail_after(5):
        await stream.run()


async def test_a_session_is_delayed_even_if_its_receiver_breaks_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sdk = BreakingSdk(requires_session=True, breaks=2)
    stream = stream_on(monkeypatch, sdk, max_sessions=1)
    stream.delay_session("one", 60)
    await run_until_it_works(stream, sdk)
    assert sdk.credits == [0, 0, 0]


async def test_receivers_of_sessions_that_break_share_growing_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []

    class Recorded(Backoff):
        """Records each delay, and returns a short one."""

        def next_delay(self, ran_for: float = 0.0) -> float:
            delays.append(super().next_delay(ran_for))
            return 0.001

    class Longest(Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    sdk = BreakingSdk(requires_session=True, breaks=20)
    stream = stream_on(monkeypatch, sdk, partial(Recorded, random=Longest()), max_sessions=3)
    await run_until_it_works(stream, sdk)
    assert delays[:5] == [0.5, 1.0, 2.0, 4.0, 5.0]
    assert set(delays[5:]) == {5.0}
