"""The end of a Service Bus client that signs in with a credential."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from producers.servicebus.sdk import client as sdk
from producers.servicebus.settings import ServiceBusSettings


class Resource:
    """A double of the SDK's client or credential."""

    def __init__(self, fault: str = "") -> None:
        self.is_closed = False
        self._fault = fault

    async def close(self) -> None:
        if self._fault == "raises":
            raise ValueError("the connection is broken")
        if self._fault == "hangs":
            await anyio.sleep_forever()
        self.is_closed = True


@pytest.mark.parametrize("fault", ["", "raises", "hangs"])
async def test_the_credential_is_closed_however_the_client_ends(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    client, credential = Resource(fault), Resource()
    made: Any = lambda *_, **__: client  # noqa: E731
    monkeypatch.setattr(sdk, "ServiceBusClient", made)
    monkeypatch.setattr(sdk, "default_credential", lambda _: credential)
    monkeypatch.setattr(sdk, "_CLOSE_TIMEOUT_S", 0.01)
    opened = sdk.Client(ServiceBusSettings(fully_qualified_namespace="example.test"))
    with anyio.fail_after(5):
        await opened.aclose()
    assert credential.is_closed
    assert client.is_closed == (not fault)
