"""Clients and receivers of azure-servicebus, and every use of its private parts.

This module replaces the SDK's `receive_messages`, for two reasons:

- Between two receive calls, the SDK releases arriving messages, and later messages of their session overtake them. This
  module stores arriving messages in order.
- While the SDK waits for messages, it cannot settle messages or renew locks. Here, such a request interrupts the wait.

Source: the code of azure-servicebus 7.15. Check this module before pyproject.toml allows a later minor release.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import ssl
from collections.abc import Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage, TransportType
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus._pyamqp.outcomes import Accepted, Released
from azure.servicebus._pyamqp.receiver import check_disposition_outcome
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from producers.servicebus.entity import EntityPath

if TYPE_CHECKING:
    from producers.servicebus.settings import ServiceBusSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long a receiver waits for one frame. `_MORE_S` suffices only for frames that have arrived already.
_POLL_S = 1.0
_MORE_S = 0.001
_CLOSE_TIMEOUT_S = 3.0
# How long `drain` waits for Service Bus's answer, which usually comes sooner. A message that comes after this time
# stays locked until its lock ends.
_DRAIN_TIMEOUT_S = 0.2


class Client:
    """A client of one namespace; made and closed in the SDK's thread."""

    def __init__(self, settings: ServiceBusSettings) -> None:
        self._credential: Any = None
        arguments: dict[str, Any] = {
            # Turn off the SDK's retries: our callers repeat failed calls, with growing delays and a log line.
            "retry_total": 0,
            "logging_enable": False,
            "user_agent": "triggerer",
        }
        if settings.transport == "websocket":
            arguments["transport_type"] = TransportType.AmqpOverWebsocket
        if (connection_string := settings.sdk_connection_string) is not None:
            self._client = ServiceBusClient.from_connection_string(connection_string, **arguments)
        else:
            self._credential = default_credential(settings)
            assert settings.fully_qualified_namespace is not None
            self._client = ServiceBusClient(
                settings.fully_qualified_namespace, self._credential, **arguments
            )
        self._settings = settings

    def receiver(
        self, entity: EntityPath, *, session: bool = False, wait_s: float | None = None
    ) -> ServiceBusReceiver:
        """Return a receiver that is not open yet.

        Args:
            session: True: the receiver accepts the next session that has messages.
            wait_s: How long the receiver waits for a session.
        Raises:
            ConfigurationError: The settings do not allow this entity: see `ServiceBusSettings.check_entity`.
        """
        self._settings.check_entity(entity.name)
        arguments: dict[str, Any] = {"socket_timeout": _POLL_S, "max_wait_time": wait_s}
        if session:
            arguments["session_id"] = NEXT_AVAILABLE_SESSION
        if entity.subscription is None:
            receiver = self._client.get_queue_receiver(entity.name, **arguments)
        else:
            receiver = self._client.get_subscription_receiver(
                entity.name, entity.subscription, **arguments
            )
        _keep_what_arrives(receiver, self._settings.idle_timeout_s)
        return receiver

    def sender(self, queue_name: str) -> Any:
        return self._client.get_queue_sender(queue_name)

    async def aclose(self) -> None:
        try:
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                with contextlib.suppress(Exception):  # The client is not used again.
                    await self._client.close()
        finally:
            # Give the credential its own deadline, so that its HTTP session is closed even if closing the client fails
            # or takes too long.
            if self._credential is not None:
                with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                    with contextlib.suppress(Exception):
                        await self._credential.close()


def default_credential(settings: ServiceBusSettings) -> Any:
    """Return the default credential chain. It is imported here, because most streams have a connection string."""
    from azure.identity.aio import DefaultAzureCredential

    return DefaultAzureCredential(
        managed_identity_client_id=settings.client_id,
        exclude_interactive_browser_credential=True,
    )


def _keep_what_arrives(receiver: Any, idle_timeout_s: float) -> None:
    """Change a receiver that is not open yet, so that it stores arriving messages and releases none."""
    create_handler = receiver._create_handler
    receiver.handlers = []

    @functools.wraps(create_handler)
    def create(auth: Any) -> None:
        create_handler(auth)
        handler = receiver._handler
        # In this object, the SDK has replaced `_message_received_async` by a method that releases messages. Delete the
        # replacement, so that the class's own method applies, which stores messages.
        del handler._message_received_async
        # Turn off the SDK's keep-alive task, which would read frames at the same time as our task.
        handler._keep_alive_interval = 0
        # The connection announces this timeout to Service Bus. Even if there is no message, Service
        # Bus sends an empty frame before the timeout ends. So a longer silence means that the
        # connection is broken.
        handler._idle_timeout = idle_timeout_s
        receiver.handlers.append(handler)
        # Replace the SDK's loop that waits for the link: it sleeps for a twentieth of a second after each frame.
        is_ready = handler.client_ready_async

        async def until_ready() -> bool:
            while not await is_ready():
                pass
            return True

        handler.client_ready_async = until_ready
        close_handler = handler.close_async

        async def close() -> None:
            connection = handler._connection
            try:
                await close_handler()
            finally:
                # If a connection ends on its own, the SDK leaves its socket to the garbage collector. So close the
                # socket here.
                if connection is not None:
                    _abort(connection)

        handler.close_async = close

    receiver._create_handler = create


async def open_receiver(receiver: ServiceBusReceiver) -> None:
    """Connect, sign in and attach the receiver; if the entity has sessions, accept a session.

    Raises:
        Exception: An error of the SDK, such as `OperationTimeoutError` if no session had messages in time.
    """
    await cancelled_once(receiver.__aenter__())


async def cancelled_once(call: Awaitable[T]) -> T:
    """Await a call, and cancel it only once, so that the call can clean up.

    anyio repeats a cancellation at every await, which would cancel the cleanup too.
    """
    task: asyncio.Task[T] = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            await asyncio.wait([task])
        raise


@contextlib.contextmanager
def _public_errors() -> Iterator[None]:
    """Translate the errors of the SDK's inner layer into the SDK's public errors."""
    try:
        yield
    except AMQPException as error:
        raise PyamqpTransport.create_servicebus_exception(logger, error) from error


def session_id_of(receiver: ServiceBusReceiver) -> str:
    """Return the id of the accepted session."""
    return str(receiver.session.session_id)


async def listen(receiver: Any, *, credit: int, wait_s: float) -> list[ServiceBusReceivedMessage]:
    """Let Service Bus send up to `credit` messages, wait up to `wait_s` for a frame, and return the received messages.

    Also renews the connection's access token when that is due.

    Cancellation: Nothing is lost: the transport stores a partly read frame, and the receiver stores received messages.
    A frame is processed without an await.
    """
    handler = receiver._handler
    if handler is None:
        raise RuntimeError("the receiver is closed")
    with _public_errors():
        await handler.client_ready_async()
        link, connection = handler._link, handler._connection
        # Send one flow frame for many messages, rather than one for each.
        if credit > 0 and link.current_link_credit <= credit // 2:
            await link.flow(link_credit=credit)
        elif credit == 0 and link.current_link_credit > 0:
            await link.flow(link_credit=0)
        if handler._received_messages.empty():
            await connection.listen(wait=wait_s)
        if not handler._received_messages.empty():
            # Read the messages that have already arrived, as far as the credit allows.
            await connection.listen(wait=_MORE_S, batch=max(1, link.current_link_credit))
    return _take(receiver)


def _take(receiver: Any) -> list[ServiceBusReceivedMessage]:
    arrived: queue.Queue[Any] = receiver._handler._received_messages
    messages = []
    while True:
        try:
            messages.append(receiver._build_received_message(arrived.get_nowait()))
        except queue.Empty:
            return messages


async def drain(receiver: Any) -> list[ServiceBusReceivedMessage]:
    """Withdraw all credit, and return the messages that were under way."""
    handler = receiver._handler
    if handler is None or handler._link is None or handler._link._is_closed:
        return []
    link, connection = handler._link, handler._connection
    if link.current_link_credit > 0:
        answered = False

        async def on_flow(_: object) -> None:
            nonlocal answered
            answered = True

        # Service Bus answers with a flow frame, after all messages under way. The SDK drops that frame, so receive it
        # here.
        link._incoming_flow = on_flow
        await link.flow(link_credit=0, drain=True, echo=True)
        with anyio.move_on_after(_DRAIN_TIMEOUT_S):
            while not answered:
                await connection.listen(wait=_DRAIN_TIMEOUT_S)
    return _take(receiver)


async def complete(
    receiver: Any, messages: Sequence[ServiceBusReceivedMessage]
) -> list[BaseException | None]:
    """Complete messages that came on the receiver's link.

    Returns: The error of each message, None if it was completed.
    """
    outcomes = await _settle(receiver, messages, Accepted())
    return [_error_of(number, outcome) for number, outcome in outcomes]


async def release(receiver: Any, messages: Sequence[ServiceBusReceivedMessage]) -> None:
    """Give messages back, so that Service Bus counts no delivery.

    A message that came on another link is skipped. It stays locked until its lock ends.
    """
    here = [message for message in messages if came_on(receiver, message)]
    if here:
        await _settle(receiver, here, Released())


async def _settle(
    receiver: Any, messages: Sequence[ServiceBusReceivedMessage], state: Any
) -> list[tuple[int, Any]]:
    """Settle messages: send all requests, and then await all answers."""
    handler = receiver._handler
    link, connection = handler._link, handler._connection
    pending = link._pending_dispositions
    numbers: list[int] = [message._delivery_id for message in messages]
    try:
        with _public_errors():
            for message, number in zip(messages, numbers, strict=True):
                pending[number] = {"settled": False, "outcome": None}
                await link._outgoing_disposition(
                    number, None, message._delivery_tag, False, state, None
                )
            while not all(pending[number]["settled"] for number in numbers):
                # Reading the state raises an error if the link or the connection is broken.
                link.get_state()
                await connection.listen(wait=_POLL_S)
        return [(number, pending[number]["outcome"]) for number in numbers]
    finally:
        for number in numbers:
            pending.pop(number, None)


def _error_of(number: int, outcome: Any) -> BaseException | None:
    try:
        check_disposition_outcome(number, outcome, "accepted")
    except Exception as error:  # noqa: BLE001  (returned)
        return error
    return None


def came_on(receiver: Any, message: ServiceBusReceivedMessage) -> bool:
    """Whether the message can be settled on this receiver's link; otherwise it needs a separate request."""
    handler = receiver._handler
    link = None if handler is None else handler._link
    tags: set[bytes] = set() if link is None else link._received_delivery_tags
    return message._delivery_tag in tags


async def renew(receiver: Any, messages: Sequence[ServiceBusReceivedMessage]) -> None:
    """Renew the locks of messages in one request, and record when the locks end now.

    Raises: the SDK's `MessageLockLostError` if one of the locks is lost. Then no lock is renewed.
    """
    tokens = [message.lock_token for message in messages]
    answer = await receiver._renew_locks(*tokens)
    ends = answer[b"expirations"]
    for message, end in zip(messages, ends, strict=True):
        message._expiry = _utc(end / 1000)


def _utc(seconds: float) -> Any:
    from azure.servicebus._common.utils import utc_from_timestamp

    return utc_from_timestamp(seconds)


async def close(receiver: Any) -> None:
    """Detach and disconnect, in any state. Call `drain` first, so that no further message comes."""
    handler = receiver._handler
    if handler is not None and handler._link is not None:
        # If the credit is 0, the SDK skips its own drain, which would end only after two idle waits.
        handler._link.current_link_credit = 0
        handler._received_messages = queue.Queue()
    connections = [one._connection for one in receiver.handlers if one._connection is not None]
    try:
        with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
            with contextlib.suppress(Exception):  # The connections are closed below in any case.
                await cancelled_once(receiver.close())
    finally:
        for connection in connections:
            _abort(connection)


def _abort(connection: Any) -> None:
    """Close the socket if the SDK has left it open, as it does after an error."""
    writer = getattr(connection._transport, "writer", None)
    if writer is not None:
        with contextlib.suppress(OSError, RuntimeError, ssl.SSLError):
            writer.transport.abort()


async def close_sender(sender: Any) -> None:
    """Detach and disconnect."""
    with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
        with contextlib.suppress(Exception):  # The sender is not used again.
            await cancelled_once(sender.close())
