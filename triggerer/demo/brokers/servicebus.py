"""`triggerer demo --broker servicebus`, with the vendor's emulator or a namespace that the user names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import anyio
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from triggerer.demo.brokers.source import NAME, REMOVAL_S, TrialSource
from triggerer.errors import BrokerUnavailable, ConfigurationError

_BATCH = 100
_EMPTY_AFTER_S = 1.0
_VARIABLE = "SERVICEBUS_CONNECTION_STRING"
# The fixed connection string of the vendor's emulator, from its documentation.
_EMULATOR = (
    "Endpoint=sb://{host};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)


class ServiceBusTrial(TrialSource):
    """A queue that must exist before the trial, because this class creates none.

    Args:
        endpoint: A connection string, or the host of an emulator.
    """

    trigger = (
        f'ServiceBusEventTrigger("{NAME}")',
        "from watchers.servicebus import ServiceBusEventTrigger",
    )

    def __init__(self, endpoint: str | None) -> None:
        connection_string = endpoint or os.environ.get(_VARIABLE)
        if not connection_string:
            raise ConfigurationError(
                "no Service Bus is configured",
                hint="start the emulator (deploy/compose.yaml has it, with the demo's queue), and name it:"
                f" --endpoint localhost; or give a namespace's connection string in {_VARIABLE}",
            )
        if "=" not in connection_string:
            connection_string = _EMULATOR.format(host=connection_string)
        self._connection_string = connection_string
        # The demo's configuration refers to this environment variable, so that the key is not in the file. Child
        # processes inherit the variable.
        os.environ[_VARIABLE] = connection_string
        where = connection_string.partition("Endpoint=")[2].partition(";")[0]
        self.where = f"Service Bus at {where}"
        self.connection = "servicebus", {"connection_string": f"env:{_VARIABLE}"}
        self._stack = AsyncExitStack()
        self._sender: Any = None

    async def __aenter__(self) -> Self:
        client = ServiceBusClient.from_connection_string(self._connection_string, retry_total=1)
        try:
            await self._stack.enter_async_context(client)
            self._sender = await self._stack.enter_async_context(client.get_queue_sender(NAME))
            await _empty(client)
        except (ServiceBusError, OSError, ValueError) as error:
            await self._stack.aclose()
            raise BrokerUnavailable(
                f"{self.where}: {error}", hint=f"is it running, with a queue {NAME!r}?"
            ) from error
        return self

    async def publish(self, values: Sequence[bytes]) -> None:
        for start in range(0, len(values), _BATCH):
            messages = [ServiceBusMessage(value) for value in values[start : start + _BATCH]]
            try:
                await self._sender.send_messages(messages)
            except ServiceBusError as error:
                raise BrokerUnavailable(
                    f"Service Bus did not accept a message: {error}",
                    hint=f"does it have a queue {NAME!r}?",
                ) from error

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Close the connection after Ctrl-C too.
        with anyio.move_on_after(REMOVAL_S, shield=True):
            await self._stack.aclose()


async def _empty(client: ServiceBusClient) -> None:
    """Delete the messages that an interrupted trial left, because they would be counted too."""
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with client.get_queue_receiver(NAME, receive_mode=mode) as receiver:
        while await receiver.receive_messages(_BATCH, max_wait_time=_EMPTY_AFTER_S):
            pass
