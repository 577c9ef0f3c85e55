"""One client's connection: AMQP by way of Proton's engine, which does no I/O of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from typing import TYPE_CHECKING, Any

from proton import (
    Collector,
    Condition,
    Connection,
    Delivery,
    Endpoint,
    Event,
    Link,
    Message,
    Receiver,
    Sender,
    Terminus,
    Transport,
    TransportException,
    symbol,
)

from tests.services.brokers.servicebus import management
from tests.services.brokers.servicebus.entities import Entity, Refused, Stored
from tests.services.brokers.servicebus.wire import (
    condition_of,
    decode,
    outgoing,
    path_of,
    split_batch,
    ticks,
)

if TYPE_CHECKING:
    from tests.services.brokers.servicebus.server import Server

_SESSION_FILTER = "com.microsoft:session-filter"
_NEXT_SESSION_TIMEOUT_S = 65.0
_IDLE_TIMEOUT_S = 240.0
_SECTIONS = (b"\x00\x53", b"\x00\x80")


class Outlet:
    """A link on which the server sends an entity's messages."""

    def __init__(self, link: Sender, entity: Entity, session_id: str | None) -> None:
        self.link = link
        self.entity = entity
        self.session_id = session_id
        self.deliveries: dict[uuid.UUID, Delivery] = {}
        self.presettled = link.remote_snd_settle_mode == Link.SND_SETTLED


class Waiting:
    """A link that waits for a session. Its attach is answered when a session is available."""

    def __init__(self, link: Sender, entity: Entity, until: float) -> None:
        self.link = link
        self.entity = entity
        self.until = until


class Peer:
    """Serves one connection until it ends. `wake` makes it send messages that have become available."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server = server
        self._reader = reader
        self._writer = writer
        self._collector = Collector()
        self._connection = Connection()
        self._connection.collect(self._collector)
        self._connection.container = "test-servicebus"
        self._transport = Transport(Transport.SERVER)
        self._transport.idle_timeout = _IDLE_TIMEOUT_S
        sasl = self._transport.sasl()
        sasl.allowed_mechs("ANONYMOUS MSSBCBS")
        sasl.allow_insecure_mechs = True
        self._transport.require_auth(False)
        self._transport.bind(self._connection)
        self.claims: dict[str, float] = {}
        self.outlets: list[Outlet] = []
        self.waiting: list[Waiting] = []
        self._replies: dict[str, Sender] = {}
        self._tags = itertools.count()
        self.released = 0
        self.transfers = 0
        self.flows = 0

    # The connection's life

    async def serve(self) -> None:
        with contextlib.suppress(OSError, TransportException, asyncio.IncompleteReadError):
            while True:
                data = await self._reader.read(65_536)
                if not data:
                    break
                while data:
                    capacity = self._transport.capacity()
                    if capacity < 0:
                        return
                    self._transport.push(data[:capacity])
                    data = data[capacity:]
                    self._handle_events()
                self.flush()
                await self._writer.drain()
                if self._transport.closed:
                    break

    def cut(self) -> None:
        """End the connection without telling the client."""
        self._writer.transport.abort()

    def end(self) -> None:
        """Release the locks on sessions that the connection had, and close it."""
        for outlet in list(self.outlets):
            self._drop(outlet)
        self.waiting.clear()
        self._writer.transport.abort()

    def wake(self) -> None:
        self._answer_waiting()
        self._pump()
        self._handle_events()
        self.flush()

    def tick(self) -> None:
        self._transport.tick(time.monotonic())
        self._handle_events()
        self.flush()

    def flush(self) -> None:
        while (pending := self._transport.pending()) > 0:
            data = self._transport.peek(pending)
            if data is None:
                break
            self._writer.write(bytes(data))
            self._transport.pop(len(data))

    # Events

    def _handle_events(self) -> None:
        while (event := self._collector.peek()) is not None:
            self._handle(event)
            self._collector.pop()

    def _handle(self, event: Any) -> None:
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self._connection.open()
        elif kind == Event.CONNECTION_REMOTE_CLOSE:
            self._connection.close()
        elif kind == Event.SESSION_REMOTE_OPEN:
            event.session.open()
        elif kind == Event.SESSION_REMOTE_CLOSE:
            event.session.close()
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            self._detached(event.link)
        elif kind == Event.LINK_FLOW:
            self.flows += 1
            self._pump()
            for outlet in self.outlets:
                if outlet.link == event.link and outlet.link.drain_mode:
                    outlet.link.drained()
        elif kind == Event.DELIVERY:
            delivery = event.delivery
            if delivery.link.is_receiver:
                self._receive(delivery)
            elif delivery.updated:
                self._settle(delivery)

    # Links

    def _attach(self, link: Link) -> None:
        if link.state & Endpoint.LOCAL_ACTIVE:
            return
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        try:
            if link.is_receiver:
                self._attach_inlet(link)
            else:
                self._attach_outlet(link)
        except Refused as refused:
            self._refuse(link, refused)

    def _refuse(self, link: Link, refused: Refused) -> None:
        """Attach without a source or a target, and detach with the reason, as the service does."""
        link.source.type = Terminus.UNSPECIFIED
        link.target.type = Terminus.UNSPECIFIED
        link.open()
        link.condition = condition_of(refused)
        link.close()

    def _attach_inlet(self, link: Receiver) -> None:
        address = path_of(link.remote_target.address or "")
        if address != "$cbs":
            path = address.removesuffix("/$management")
            self._authorize(path, "Send" if path == address else "Listen")
            self.server.namespace.targets(path) if path == address else self._find(path)
        link.open()
        link.flow(500)

    def _attach_outlet(self, link: Sender) -> None:
        address = path_of(link.remote_source.address or "")
        if address == "$cbs" or address.endswith("/$management"):
            self._replies[address.lower()] = link
            link.open()
            return
        self._authorize(address, "Listen")
        entity = self._find(address)
        filters = _map_of(link.remote_source.filter)
        if _SESSION_FILTER not in filters:
            if entity.requires_session:
                raise Refused(
                    "amqp:not-allowed",
                    "It is not possible for an entity that requires sessions to create a non-sessionful message"
                    " receiver.",
                )
            self._open_outlet(link, entity, None)
            return
        if not entity.requires_session:
            raise Refused(
                "amqp:not-allowed",
                "A sessionful message receiver cannot be created on an entity that does not require sessions."
                " Ensure RequiresSession is set to true when creating a Queue or Subscription to enable sessionful"
                " behavior.",
            )
        wanted = filters[_SESSION_FILTER]
        accepted = entity.accept_session(link, None if wanted is None else str(wanted))
        if accepted is not None:
            self._open_outlet(link, entity, accepted)
            return
        asked = (link.remote_properties or {}).get("com.microsoft:timeout")
        timeout_s = _NEXT_SESSION_TIMEOUT_S if asked is None else int(asked) / 1000
        self.waiting.append(Waiting(link, entity, time.time() + timeout_s))
        self.server.wake_at(time.time() + timeout_s)

    def _open_outlet(self, link: Sender, entity: Entity, session_id: str | None) -> None:
        if session_id is not None:
            filters = link.source.filter
            filters.clear()
            filters.put_dict({symbol(_SESSION_FILTER): session_id})
            until = entity.sessions[session_id].locked_until
            link.properties = {symbol("com.microsoft:locked-until-utc"): ticks(until)}
            self.server.wake_at(until)
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode
        link.open()
        self.outlets.append(Outlet(link, entity, session_id))

    def _answer_waiting(self) -> None:
        for one in list(self.waiting):
            accepted = one.entity.accept_session(one.link, None)
            if accepted is not None:
                self.waiting.remove(one)
                self._open_outlet(one.link, one.entity, accepted)
            elif time.time() >= one.until:
                self.waiting.remove(one)
                self._refuse(
                    one.link,
                    Refused(
                        "com.microsoft:timeout",
                        "The operation did not complete within the allotted timeout. The time allotted to this"
                        " operation may have been a portion of a longer timeout.",
                    ),
                )

    def _detached(self, link: Link) -> None:
        for outlet in list(self.outlets):
            if outlet.link == link:
                self._drop(outlet)
        self.waiting = [one for one in self.waiting if one.link != link]
        if link.state & Endpoint.LOCAL_ACTIVE:
            link.close()

    def _drop(self, outlet: Outlet) -> None:
        """Forget a link that is gone.

        If the link had a session, the session and its unsettled messages are free at once. Otherwise the link's
        messages stay locked until their locks end.
        """
        if outlet in self.outlets:
            self.outlets.remove(outlet)
        if outlet.session_id is not None:
            outlet.entity.release_session(outlet.session_id, outlet.link, counts=False)

    def detach(self, path: str, condition: str, description: str) -> int:
        """Detach all links of an entity with an error, from the server's side; return their number."""
        dropped = [one for one in self.outlets if one.entity.path.lower() == path.lower()]
        for outlet in dropped:
            self._detach_outlet(outlet, Condition(condition, description))
        self._handle_events()
        self.flush()
        return len(dropped)

    def _detach_outlet(self, outlet: Outlet, condition: Condition) -> None:
        self._drop(outlet)
        outlet.link.condition = condition
        outlet.link.close()

    def lose_sessions(self, holders: list[object]) -> None:
        """Detach the links whose session locks have expired, and tell their receivers the reason."""
        for outlet in list(self.outlets):
            if any(outlet.link == holder for holder in holders):
                condition = Condition(
                    "com.microsoft:session-lock-lost",
                    f"The session lock has expired on the MessageSession '{outlet.session_id}'.",
                )
                self._detach_outlet(outlet, condition)

    # Rights

    def _authorize(self, path: str, right: str) -> None:
        tokens = self.server.tokens
        now = time.time()
        good = any(
            until > now and (path.lower() + "/").startswith((claimed.lower() + "/").lstrip("/"))
            for claimed, until in self.claims.items()
        )
        if not good or any(path.lower().startswith(denied) for denied in tokens.denied):
            raise Refused(
                "amqp:unauthorized-access",
                f"Unauthorized access. '{right}' claim(s) are required to perform this operation."
                f" Resource: 'sb://test.servicebus.windows.net/{path}'.",
            )

    def enforce(self) -> None:
        """Detach the links that no claim covers."""
        for outlet in list(self.outlets):
            try:
                self._authorize(outlet.entity.path, "Listen")
            except Refused:
                condition = Condition(
                    "amqp:unauthorized-access",
                    "The link is force detached: unauthorized access. ExpiredToken: the token is expired.",
                )
                self._detach_outlet(outlet, condition)

    def _find(self, path: str) -> Entity:
        return self.server.namespace.find(path)

    # Messages that come in

    def _receive(self, delivery: Delivery) -> None:
        if delivery.partial or not delivery.readable:
            return
        link = delivery.link
        data = bytes(link.recv(delivery.pending) or b"")
        link.advance()
        if link.credit < 100:
            link.flow(500)
        address = path_of(link.remote_target.address or "")
        try:
            if address == "$cbs":
                self._put_token(decode(data))
            elif address.endswith("/$management"):
                request = decode(data)
                path = address.removesuffix("/$management")
                self._reply(address, management.answer(self, path, request))
            else:
                self._enqueue(address, data)
            delivery.update(Delivery.ACCEPTED)
        except Refused as refused:
            delivery.local.condition = condition_of(refused)
            delivery.update(Delivery.REJECTED)
        delivery.settle()

    def _enqueue(self, address: str, data: bytes) -> None:
        # A batch has its own message format, which Proton does not expose. So inspect the data: if each data section is
        # an encoded message, the message is a batch.
        for entity in self.server.namespace.targets(address):
            for one in _messages_in(data):
                management.enqueue(entity, one)

    def _put_token(self, request: Message) -> None:
        fields = request.properties or {}
        status, description, until = self.server.tokens.check(_as_text(request.body))
        if status == 202:
            self.claims[path_of(_as_text(fields.get("name")))] = until
            self.server.wake_at(until + 0.01)
        reply = Message(
            properties={"status-code": _int32(status), "status-description": description}
        )
        reply.correlation_id = request.id
        self._reply("$cbs", reply)

    def _reply(self, address: str, message: Message) -> None:
        link = self._replies.get(address.lower())
        if link is None:
            return
        delivery = link.delivery(f"r{next(self._tags)}")
        link.stream(bytes(message.encode()))
        link.advance()
        delivery.settle()

    # Messages that go out

    def _pump(self) -> None:
        """Send available messages on all links, as far as their credit allows."""
        for outlet in list(self.outlets):
            while outlet.link.credit > 0 and not self.server.holds_back(outlet.entity):
                stored = outlet.entity.lock_next(outlet.link, outlet.session_id)
                if stored is None:
                    break
                self._transfer(outlet, stored)

    def _transfer(self, outlet: Outlet, stored: Stored) -> None:
        token = stored.lock_token
        assert token is not None
        self.transfers += 1
        delivery = outlet.link.delivery(token.bytes_le.decode("ascii"))
        outlet.link.stream(outgoing(stored, now_locked_until=stored.locked_until))
        outlet.link.advance()
        if outlet.presettled:
            delivery.settle()
            outlet.entity.complete(token)
            return
        outlet.deliveries[token] = delivery
        self.server.wake_at(stored.locked_until)

    def _settle(self, delivery: Delivery) -> None:
        """Apply an outcome, and say which was applied."""
        token = uuid.UUID(bytes_le=delivery.tag.encode("ascii"))
        outlet = next((one for one in self.outlets if one.link == delivery.link), None)
        if outlet is None or outlet.deliveries.pop(token, None) is None:
            return
        state, remote = delivery.remote_state, delivery.remote
        try:
            self.server.fail_settlement(outlet.entity)
            if state == Delivery.ACCEPTED:
                outlet.entity.complete(token)
            elif state == Delivery.REJECTED:
                info: Any = (remote.condition.info or {}) if remote.condition else {}
                texts = {str(name): _as_text(value) for name, value in info.items()}
                outlet.entity.suspend(
                    token, texts.get("DeadLetterReason"), texts.get("DeadLetterErrorDescription")
                )
            elif state == Delivery.MODIFIED:
                outlet.entity.abandon(token)
                delivery.local.failed = True
            else:
                self.released += 1
                outlet.entity.release(token)
            delivery.update(state or Delivery.RELEASED)
        except Refused as refused:
            delivery.local.condition = condition_of(refused)
            delivery.update(Delivery.REJECTED)
        delivery.settle()
        # Flush after each delivery, so that each outcome is sent in a separate disposition, as Service Bus does.
        self.flush()


def _messages_in(data: bytes) -> list[bytes]:
    inner = split_batch(data)
    if inner and all(one.startswith(_SECTIONS) for one in inner):
        return inner
    return [data]


def _map_of(filters: Any) -> dict[str, Any]:
    filters.rewind()
    if filters.next() is None:
        return {}
    found = filters.get_object()
    return {str(name): value for name, value in (found or {}).items()}


def _as_text(value: Any) -> str:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).decode()
    return "" if value is None else str(value)


def _int32(number: int) -> Any:
    from proton import int32

    return int32(number)
