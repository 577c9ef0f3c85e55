"""A stream of Service Bus whose receivers do not open."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

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
