"""Executes the commands of tests.

A command is a line of JSON with the key `do`. Each answer is a line of JSON.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any

from proton import Message

from tests.services.brokers.servicebus.wire import decode

if TYPE_CHECKING:
    from tests.services.brokers.servicebus.server import Server


class Control:
    """Makes entities, sends and shows messages, and causes the faults that a test orders."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            order = json.loads(line)
            try:
                answer = {"answer": getattr(self, f"do_{order.pop('do')}")(**order)}
            except Exception as error:  # noqa: BLE001  (told to the test)
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    # Entities

    def do_create(self, path: str, **settings: Any) -> None:
        self._server.namespace.create(path, **settings)

    def do_delete(self, path: str) -> None:
        self._server.namespace.delete(path)
        for peer in list(self._server.peers):
            peer.detach(
                path, "amqp:not-found", f"The messaging entity '{path}' could not be found."
            )

    def do_disable(self, path: str, disabled: bool) -> None:
        for entity in self._server.namespace.all():
            if entity.path.lower() == path.lower():
                entity.disabled = disabled

    def do_send(
        self,
        path: str,
        values: list[str],
        session_id: str | None = None,
        properties: dict[str, Any] | None = None,
        message_id: str | None = None,
        content_type: str | None = None,
    ) -> list[int]:
        numbers = []
        for value in values:
            message = Message(body=base64.b64decode(value), inferred=True)
            message.id = message_id
            if content_type is not None:
                message.content_type = content_type
            if session_id is not None:
                message.group_id = session_id
            if properties:
                message.properties = properties
            encoded = bytes(message.encode())
            numbers += [
                entity.enqueue(encoded, session_id).sequence_number
                for entity in self._server.namespace.targets(path)
            ]
        return numbers

    def do_look(self, path: str) -> dict[str, Any]:
        """Return the messages in an entity, and the records of its completed and abandoned messages."""
        entity = self._server.namespace.find(path)
        entity.expire()
        return {
            "completed": entity.completed,
            "abandoned": entity.abandoned,
            "messages": [
                {
                    "value": base64.b64encode(_body_of(one.body)).decode(),
                    "sequence_number": one.sequence_number,
                    "session_id": one.session_id,
                    "delivery_count": one.delivery_count,
                    "locked": one.lock_token is not None,
                    "dead_letter": one.dead_letter,
                    "properties": {
                        str(name): str(value)
                        for name, value in (decode(one.body).properties or {}).items()
                    },
                }
                for one in entity.messages.values()
            ],
        }

    # What goes wrong

    def do_hold_back(self, path: str, held: bool) -> None:
        """Deliver no message of an entity, or deliver again if `held` is False."""
        (self._server.held_back.add if held else self._server.held_back.discard)(path.lower())
        self._server.wake()

    def do_detach(self, path: str, condition: str, description: str) -> int:
        """Detach all links to an entity with this error; return their number."""
        return sum(peer.detach(path, condition, description) for peer in list(self._server.peers))

    def do_cut(self, path: str | None = None) -> int:
        """Cut the connections that receive from an entity, or with None all connections; return their number."""
        cut = [
            peer
            for peer in self._server.peers
            if path is None or any(one.entity.path.lower() == path.lower() for one in peer.outlets)
        ]
        for peer in cut:
            peer.cut()
        return len(cut)

    def do_expire_locks(self, path: str) -> None:
        """Let all locks of an entity end now."""
        entity = self._server.namespace.find(path)
        for one in entity.messages.values():
            one.locked_until = 0.0
        for session in entity.sessions.values():
            session.locked_until = 0.0
        entity.expire_all_now()
        self._server.on_timer()

    def do_refuse_renewals(self, path: str, refuse: bool) -> None:
        """Refuse to renew locks of an entity, so that they expire."""
        self._server.namespace.find(path).refuses_renewals = refuse

    def do_fail_settlements(self, count: int) -> None:
        """Refuse the next `count` dispositions, as if the locks were lost."""
        self._server.failing_settlements = count

    def do_refuse_connections(self, refuse: bool) -> None:
        self._server.refuses_connections = refuse

    def do_tokens(
        self,
        jwts: list[str] | None = None,
        denied: list[str] | None = None,
        lifetime_s: float | None = None,
    ) -> None:
        tokens = self._server.tokens
        tokens.jwts = set(jwts or ())
        tokens.denied = {one.lower() for one in denied or ()}
        tokens.lifetime_s = lifetime_s

    def do_stats(self) -> dict[str, Any]:
        peers = self._server.peers
        return {
            "connections": len(peers),
            "links": sum(len(peer.outlets) for peer in peers),
            "waiting": sum(len(peer.waiting) for peer in peers),
            "transfers": sum(peer.transfers for peer in peers),
            "flows": sum(peer.flows for peer in peers),
            "released": sum(peer.released for peer in peers),
            "operations": dict(self._server.operations),
            "tokens_accepted": self._server.tokens.accepted,
            "tokens_refused": self._server.tokens.refused,
        }


def _body_of(encoded: bytes) -> bytes:
    # `message` must not be freed while the view of its body is read.
    message = decode(encoded)
    return bytes(message.body or b"")
