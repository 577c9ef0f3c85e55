"""Queues, subscriptions and their dead-letter queues: messages, locks, sessions and delivery counts. No network.

All times are seconds since the epoch.
"""

from __future__ import annotations

import heapq
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

DEAD_LETTER_SUFFIX = "/$deadletterqueue"


class Refused(Exception):
    """The service refuses a request, with an AMQP condition."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.condition = condition
        self.description = description


def lock_lost() -> Refused:
    return Refused(
        "com.microsoft:message-lock-lost",
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue,"
        " or was received by a different receiver instance.",
    )


def session_lock_lost(session_id: str) -> Refused:
    return Refused(
        "com.microsoft:session-lock-lost",
        f"The session lock has expired on the MessageSession '{session_id}'. Accept a new MessageSession.",
    )


@dataclass(eq=False, slots=True)
class Stored:
    """One message of an entity."""

    body: bytes
    """The message as its sender encoded it."""
    sequence_number: int
    enqueued_at: float
    session_id: str | None
    scheduled_for: float = 0.0
    delivery_count: int = 0
    lock_token: uuid.UUID | None = None
    locked_until: float = 0.0
    holder: object | None = None
    dead_letter: dict[str, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Session:
    """A session: the link that has it locked, the end of the lock, and the session's state."""

    holder: object | None = None
    locked_until: float = 0.0
    state: bytes | None = None


def new_lock_token() -> uuid.UUID:
    # Proton for Python takes delivery tags as text, so each byte of a token must be an ASCII character.
    return uuid.UUID(bytes_le=bytes(secrets.choice(range(0x21, 0x7F)) for _ in range(16)))


class Entity:
    """A queue, a subscription or a dead-letter queue.

    Args:
        on_change: Called when a message or a session may have become available.
    """

    def __init__(
        self,
        path: str,
        *,
        on_change: Callable[[Entity], None],
        requires_session: bool = False,
        lock_s: float = 60.0,
        max_delivery_count: int = 10,
        dead_letters: Entity | None = None,
    ) -> None:
        self.path = path
        self.requires_session = requires_session
        self.lock_s = lock_s
        self.max_delivery_count = max_delivery_count
        self.dead_letters = dead_letters
        self.disabled = False
        self.refuses_renewals = False
        self.completed = 0
        self.abandoned = 0
        self.sessions: dict[str, Session] = {}
        self.messages: dict[int, Stored] = {}
        """All messages by sequence number, in this order."""
        self._locked: dict[uuid.UUID, Stored] = {}
        self._last_number = 0
        self._on_change = on_change
        self._ready: dict[str | None, list[int]] = {}
        """Heaps of the sequence numbers of available messages, by session; None is the key without sessions."""
        self._scheduled: list[tuple[float, int]] = []
        # No lock ends before this time, so most calls of `expire` need only this comparison.
        self._no_expiry_before = 0.0

    def enqueue(
        self,
        body: bytes,
        session_id: str | None,
        *,
        scheduled_for: float = 0.0,
        dead_letter: dict[str, str] | None = None,
    ) -> Stored:
        if self.requires_session and session_id is None:
            raise Refused(
                "amqp:not-allowed",
                f"The SessionId was not set on a message, and it cannot be sent to the entity '{self.path}'."
                " Entities that have session support enabled can only receive messages that have the SessionId set.",
            )
        self._last_number += 1
        stored = Stored(
            body, self._last_number, time.time(), session_id, scheduled_for,
            dead_letter=dead_letter or {},
        )  # fmt: skip
        self.messages[stored.sequence_number] = stored
        if session_id is not None and self.requires_session:
            self.sessions.setdefault(session_id, Session())
        if scheduled_for > time.time():
            heapq.heappush(self._scheduled, (scheduled_for, stored.sequence_number))
        else:
            self._make_ready(stored)
        self._on_change(self)
        return stored

    # A restart

    def snapshot(self) -> dict[str, Any]:
        """Return the state for a restart: settings, counts and messages, but no locks."""
        return {
            "settings": {
                "requires_session": self.requires_session,
                "lock_s": self.lock_s,
                "max_delivery_count": self.max_delivery_count,
            },
            "disabled": self.disabled,
            "completed": self.completed,
            "abandoned": self.abandoned,
            "last_number": self._last_number,
            "messages": [
                {
                    "body": one.body,
                    "sequence_number": one.sequence_number,
                    "enqueued_at": one.enqueued_at,
                    "session_id": one.session_id,
                    "scheduled_for": one.scheduled_for,
                    "delivery_count": one.delivery_count,
                    "dead_letter": one.dead_letter,
                }
                for one in self.messages.values()
            ],
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Take over the messages of a snapshot."""
        self.disabled, self._last_number = kept["disabled"], kept["last_number"]
        self.completed, self.abandoned = kept["completed"], kept["abandoned"]
        for fields in kept["messages"]:
            stored = Stored(**fields)
            self.messages[stored.sequence_number] = stored
            if stored.session_id is not None and self.requires_session:
                self.sessions.setdefault(stored.session_id, Session())
            if stored.scheduled_for > time.time():
                heapq.heappush(self._scheduled, (stored.scheduled_for, stored.sequence_number))
            else:
                self._make_ready(stored)

    def _make_ready(self, stored: Stored) -> None:
        key = stored.session_id if self.requires_session else None
        heapq.heappush(self._ready.setdefault(key, []), stored.sequence_number)

    def _take_ready(self, session_id: str | None) -> Stored | None:
        heap = self._ready.get(session_id if self.requires_session else None)
        while heap:
            stored = self.messages.get(heapq.heappop(heap))
            if stored is not None and stored.lock_token is None:
                return stored
        return None

    def lock_next(self, holder: object, session_id: str | None = None) -> Stored | None:
        """Lock the oldest available message for a link, and return it; None if no message is available.

        The messages of a session are locked for as long as the session is.
        """
        self.expire()
        stored = self._take_ready(session_id)
        if stored is None:
            return None
        stored.lock_token = new_lock_token()
        stored.holder = holder
        stored.locked_until = (
            self.sessions[session_id].locked_until
            if self.requires_session and session_id is not None
            else time.time() + self.lock_s
        )
        self._locked[stored.lock_token] = stored
        self._no_expiry_before = min(self._no_expiry_before, stored.locked_until)
        return stored

    def next_expiry(self) -> float | None:
        """Return when the next lock ends or the next scheduled message is due; None if there is neither."""
        times = [session.locked_until for session in self.sessions.values() if session.holder]
        if not self.requires_session:
            times += [stored.locked_until for stored in self._locked.values()]
        times += [due for due, _ in self._scheduled[:1]]
        return min(times, default=None)

    def expire(self) -> list[object]:
        """End expired locks, make due messages available, and return the links that lost their session."""
        now = time.time()
        lost: list[object] = []
        while self._scheduled and self._scheduled[0][0] <= now:
            due = self.messages.get(heapq.heappop(self._scheduled)[1])
            if due is not None:
                self._make_ready(due)
                self._on_change(self)
        if now < self._no_expiry_before:
            return lost
        if self.requires_session:
            for session_id, session in self.sessions.items():
                if session.holder is not None and session.locked_until <= now:
                    lost.append(session.holder)
                    self.release_session(session_id, session.holder, counts=True)
        else:
            for stored in [one for one in self._locked.values() if one.locked_until <= now]:
                self._give_up(stored, counts=True)
        held = [one.locked_until for one in self.sessions.values() if one.holder is not None]
        held += [one.locked_until for one in self._locked.values()]
        self._no_expiry_before = min(held, default=now + self.lock_s)
        return lost

    def expire_all_now(self) -> None:
        """Make the next `expire` check all locks, because a test has moved their ends into the past."""
        self._no_expiry_before = 0.0

    # Sessions

    def accept_session(self, holder: object, session_id: str | None) -> str | None:
        """Lock a session, or the next session with messages if the id is None. Return its id; None if there is none."""
        self.expire()
        if session_id is not None:
            session = self.sessions.setdefault(session_id, Session())
            if session.holder is not None:
                raise Refused(
                    "com.microsoft:session-cannot-be-locked",
                    f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.",
                )
        else:
            waiting = [
                (heap[0], name)
                for name, heap in self._ready.items()
                if heap and name is not None and self.sessions[name].holder is None
            ]
            session_id = min(waiting)[1] if waiting else None
            if session_id is None:
                return None
            session = self.sessions[session_id]
        session.holder = holder
        session.locked_until = time.time() + self.lock_s
        self._no_expiry_before = min(self._no_expiry_before, session.locked_until)
        return session_id

    def renew_session(self, session_id: str) -> float:
        self.expire()
        session = self.sessions.get(session_id)
        if session is None or session.holder is None:
            raise session_lock_lost(session_id)
        session.locked_until = time.time() + self.lock_s
        return session.locked_until

    def release_session(self, session_id: str, holder: object, *, counts: bool) -> None:
        """Release a session, and make its unsettled messages available. With `counts`, their delivery count rises."""
        session = self.sessions.get(session_id)
        if session is None or session.holder is not holder:
            return
        session.holder = None
        for stored in [one for one in self._locked.values() if one.session_id == session_id]:
            self._give_up(stored, counts=counts)
        self._on_change(self)

    # Settling

    def find_locked(self, token: uuid.UUID) -> Stored:
        self.expire()
        stored = self._locked.get(token)
        if stored is None:
            raise lock_lost()
        return stored

    def renew(self, token: uuid.UUID) -> float:
        stored = self.find_locked(token)
        stored.locked_until = time.time() + self.lock_s
        return stored.locked_until

    def complete(self, token: uuid.UUID) -> None:
        stored = self.find_locked(token)
        self._forget(stored)
        self.completed += 1

    def abandon(self, token: uuid.UUID) -> None:
        self._give_up(self.find_locked(token), counts=True)
        self.abandoned += 1

    def release(self, token: uuid.UUID) -> None:
        self._give_up(self.find_locked(token), counts=False)

    def suspend(self, token: uuid.UUID, reason: str | None, description: str | None) -> None:
        """Move a message to the dead-letter queue."""
        stored = self.find_locked(token)
        self._dead_letter(stored, reason, description)

    def _dead_letter(self, stored: Stored, reason: str | None, description: str | None) -> None:
        if self.dead_letters is None:
            raise Refused("amqp:not-allowed", "A dead-letter queue has no dead-letter queue.")
        self._forget(stored)
        why = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        self.dead_letters.enqueue(
            stored.body,
            stored.session_id,
            dead_letter={name: value for name, value in why.items() if value},
        )

    def _forget(self, stored: Stored) -> None:
        del self.messages[stored.sequence_number]
        self._unlock(stored)

    def _unlock(self, stored: Stored) -> None:
        if stored.lock_token is not None:
            del self._locked[stored.lock_token]
        stored.lock_token, stored.holder = None, None

    def _give_up(self, stored: Stored, *, counts: bool) -> None:
        self._unlock(stored)
        if counts:
            stored.delivery_count += 1
            if self.dead_letters is not None and stored.delivery_count >= self.max_delivery_count:
                self._dead_letter(
                    stored,
                    "MaxDeliveryCountExceeded",
                    f"Message could not be consumed after {self.max_delivery_count} delivery attempts.",
                )
                return
        self._make_ready(stored)
        self._on_change(self)


class Namespace:
    """All entities by path, in lower case. A message to a topic goes to all subscriptions of the topic."""

    def snapshot(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Return the path of each entity, with its snapshot and the snapshot of its dead-letter queue."""
        return [
            (entity.path, entity.snapshot(), entity.dead_letters.snapshot())
            for entity in self.all()
            if entity.dead_letters is not None
        ]

    def restore(self, kept: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        for path, own, dead in kept:
            entity = self.create(path, **own["settings"])
            assert entity.dead_letters is not None
            entity.restore(own)
            entity.dead_letters.restore(dead)

    def __init__(self, on_change: Callable[[Entity], None]) -> None:
        self._on_change = on_change
        self._entities: dict[str, Entity] = {}
        self._topics: dict[str, list[Entity]] = {}

    def create(self, path: str, **settings: Any) -> Entity:
        """Make a queue (`orders`) or a subscription (`orders/Subscriptions/all`), with its dead-letter queue."""
        dead = Entity(path + DEAD_LETTER_SUFFIX, on_change=self._on_change)
        entity = Entity(path, on_change=self._on_change, dead_letters=dead, **settings)
        self._entities[path.lower()] = entity
        self._entities[dead.path.lower()] = dead
        topic, separator, _ = path.lower().partition("/subscriptions/")
        if separator:
            self._topics.setdefault(topic, []).append(entity)
        return entity

    def delete(self, path: str) -> None:
        for name in (path.lower(), path.lower() + DEAD_LETTER_SUFFIX):
            entity = self._entities.pop(name)
            for subscriptions in self._topics.values():
                if entity in subscriptions:
                    subscriptions.remove(entity)

    def all(self) -> list[Entity]:
        return list(self._entities.values())

    def find(self, path: str) -> Entity:
        entity = self._entities.get(path.lower())
        if entity is None:
            raise not_found(path)
        if entity.disabled:
            raise Refused(
                "com.microsoft:entity-disabled", f"Messaging entity '{path}' is disabled."
            )
        return entity

    def targets(self, path: str) -> list[Entity]:
        """Return the entities that a sender to this path reaches."""
        if path.lower() in self._topics:
            return self._topics[path.lower()]
        return [self.find(path)]


def not_found(path: str) -> Refused:
    return Refused(
        "amqp:not-found",
        f"The messaging entity 'sb://test.servicebus.windows.net/{path}' could not be found.",
    )
