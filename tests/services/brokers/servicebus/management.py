"""`$management` of an entity: the clients' requests and their answers."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from proton import UNDESCRIBED, Array, Data, Message, int32, symbol, timestamp

from tests.services.brokers.servicebus.entities import (
    Entity,
    Refused,
    Stored,
    lock_lost,
    session_lock_lost,
)
from tests.services.brokers.servicebus.wire import decode, outgoing

if TYPE_CHECKING:
    from tests.services.brokers.servicebus.connection import Peer

_STATUS = {
    "com.microsoft:message-lock-lost": 410,
    "com.microsoft:session-lock-lost": 410,
    "amqp:not-found": 404,
    "amqp:unauthorized-access": 401,
}


def answer(peer: Peer, path: str, request: Message) -> Message:
    """Perform the request's operation on the entity at this path, and return the reply."""
    fields = request.properties or {}
    body: dict[str, Any] = {str(name): value for name, value in (request.body or {}).items()}
    operation = _text(fields.get("operation")).removeprefix("com.microsoft:")
    reply = Message()
    reply.correlation_id = request.id
    try:
        entity = peer.server.namespace.find(path)
        peer.server.count(operation)
        status, content = _OPERATIONS[operation](peer, entity, body)
        reply.properties = {"statusCode": int32(status), "statusDescription": "OK"}
        reply.body = content
    except Refused as refused:
        reply.properties = {
            "statusCode": int32(_STATUS.get(refused.condition, 400)),
            "statusDescription": refused.description,
            "errorCondition": symbol(refused.condition),
        }
    return reply


def enqueue(entity: Entity, encoded: bytes) -> Stored:
    """Store an encoded message, at once or for later."""
    message = decode(encoded)
    annotations = {str(name): value for name, value in (message.annotations or {}).items()}
    due = annotations.get("x-opt-scheduled-enqueue-time")
    return entity.enqueue(
        encoded, message.group_id or None, scheduled_for=0.0 if due is None else int(due) / 1000
    )


def _tokens(body: dict[str, Any]) -> list[uuid.UUID]:
    return [uuid.UUID(bytes=one.bytes) for one in _elements(body["lock-tokens"])]


def _elements(array: Any) -> list[Any]:
    return list(array.elements) if isinstance(array, Array) else list(array)


def _renew_lock(peer: Peer, entity: Entity, body: dict[str, Any]) -> tuple[int, Any]:
    tokens = _tokens(body)
    if entity.refuses_renewals:
        raise lock_lost()
    for token in tokens:
        entity.find_locked(token)
    ends = [timestamp(int(entity.renew(token) * 1000)) for token in tokens]
    for end in ends:
        peer.server.wake_at(int(end) / 1000)
    return 200, {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *ends)}


def _renew_session(peer: Peer, entity: Entity, body: dict[str, Any]) -> tuple[int, Any]:
    session_id = _text(body["session-id"])
    _check_session(peer, entity, session_id)
    if entity.refuses_renewals:
        raise session_lock_lost(session_id)
    until = entity.renew_session(session_id)
    peer.server.wake_at(until)
    return 200, {"expiration": timestamp(int(until * 1000))}


def _check_session(peer: Peer, entity: Entity, session_id: str) -> None:
    """Refuse a request about a session that this connection has not locked."""
    session = entity.sessions.get(session_id)
    if session is None or not any(one.link == session.holder for one in peer.outlets):
        raise Refused(
            "com.microsoft:session-lock-lost",
            f"The session lock has expired on the MessageSession '{session_id}'. Accept a new MessageSession.",
        )


def _update_disposition(peer: Peer, entity: Entity, body: dict[str, Any]) -> tuple[int, Any]:
    tokens, status = _tokens(body), _text(body["disposition-status"])
    for token in tokens:
        entity.find_locked(token)
    for token in tokens:
        if status == "completed":
            entity.complete(token)
        elif status == "abandoned":
            entity.abandon(token)
        elif status == "suspended":
            entity.suspend(
                token,
                _text(body.get("deadletter-reason")),
                _text(body.get("deadletter-description")),
            )
        else:
            raise Refused("amqp:not-implemented", f"disposition-status {status}")
    return 200, None


def _peek(peer: Peer, entity: Entity, body: dict[str, Any]) -> tuple[int, Any]:
    first, count = int(body["from-sequence-number"]), int(body["message-count"])
    found = [one for one in entity.messages.values() if one.sequence_number >= first][:count]
    return (200, {"messages": _as_maps(found)}) if found else (204, None)


def _receive_by_number(peer: Peer, entity: Entity, body: dict[str, Any]) -> tuple[int, Any]:
    # The operation is for deferred messages, and no client in these tests defers messages.
    raise Refused(
        "com.microsoft:message-not-found", "Failed to lock one or more specified messages."
    )


def _schedule(peer: Peer, entity: Entity, body: dict[str, Any]) -> tuple[int, Any]:
    numbers = []
    for one in body["messages"]:
        stored = enqueue(entity, bytes(one["message"]))
        peer.server.wake_at(stored.scheduled_for)
        numbers.append(stored.sequence_number)
    return 200, {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *numbers)}


def _as_maps(found: list[Stored]) -> list[dict[str, Any]]:
    return [{"message": outgoing(one, now_locked_until=time.time())} for one in found]


def _text(value: Any) -> str:
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).decode()
    return "" if value is None else str(value)


_OPERATIONS = {
    "renew-lock": _renew_lock,
    "renew-session-lock": _renew_session,
    "update-disposition": _update_disposition,
    "peek-message": _peek,
    "receive-by-sequence-number": _receive_by_number,
    "schedule-message": _schedule,
}
