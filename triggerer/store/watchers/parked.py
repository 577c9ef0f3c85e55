"""Writes stored and parked messages for the instance that owns their stream. `stored_backlog` reads stored messages.

A stored message belongs to the backlog of a watcher that is behind in a queue (state `kept`). A parked message is set
aside, because its watcher cannot process it (state `set_aside`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from triggerer.domain.events import Fence
from triggerer.domain.watchers.parked import (
    NO_LONGER_READ,
    Failed,
    ParkedBounds,
    ParkedChange,
    ParkedState,
    Passed,
    Replayed,
    Returned,
    SetAside,
    Stored,
)
from triggerer.store.database.clock import Now
from triggerer.store.database.script import Row, Script
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows
from triggerer.store.streams.fences import valid_fences
from triggerer.store.watchers.parked_usage import TOTAL, USAGE, ParkedUsage

# Reads how many messages and bytes are stored for a watcher, and how many bytes are stored for all watchers. If the
# message to park (`key`) is stored already, it is not counted.
USED: Final = Statement(
    "SELECT count(m.id), coalesce(sum(b.size_bytes), 0), "
    "(SELECT coalesce(sum(size_bytes), 0) FROM parked_body) - coalesce((SELECT size_bytes FROM parked_body "
    "WHERE stream_digest = {digest} AND idempotency_key = {key}), 0) "
    "FROM parked_message m JOIN parked_body b ON b.id = m.body_id "
    "WHERE m.watcher_id = {watcher_id} AND m.idempotency_key <> {key}"
)
_STORE_BODIES: Final = (
    "INSERT INTO parked_body (stream_digest, idempotency_key, data, size_bytes) {} "
    "ON CONFLICT (stream_digest, idempotency_key) DO UPDATE SET size_bytes = excluded.size_bytes "
    "RETURNING stream_digest, idempotency_key, id"
)
_STORE_BODY_ON_SQLITE: Final = _STORE_BODIES.format("VALUES (?, ?, ?, ?)")
_STORE_BODIES_ON_POSTGRES: Final = _STORE_BODIES.format(
    "SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[])"
)
SET_ASIDE: Final = Statement(
    "INSERT INTO parked_message "
    "(watcher_id, body_id, lane, idempotency_key, state, failures, error, traceback, parked_at) "
    "VALUES ({watcher_id}, {body_id}, {lane}, {key}, {state}, {failures}, {error}, {traceback}, {parked_at}) "
    "ON CONFLICT (watcher_id, idempotency_key) DO UPDATE SET state = excluded.state, "
    "failures = excluded.failures, error = excluded.error, traceback = excluded.traceback"
)
# Stores messages for backlogs. A message that is already stored keeps its state and its id, and thereby its place in
# the order. A watcher that was deleted or moved to another stream does not read the backlog of this stream. So a new
# message for such a watcher is parked.
STORE: Final = Statement(
    "INSERT INTO parked_message "
    "(watcher_id, body_id, lane, idempotency_key, state, failures, error, parked_at) "
    "SELECT g.watcher_id, g.body_id, g.lane, g.key, CASE WHEN t.id IS NULL THEN {else_state} ELSE {state} END, "
    "0, CASE WHEN t.id IS NULL THEN {else_error} END, g.parked_at FROM {MESSAGES} g "
    "LEFT JOIN watcher w ON w.id = g.watcher_id "
    "LEFT JOIN trigger t ON t.id = w.trigger_id AND t.stream_digest = g.digest "
    "ORDER BY g.place ON CONFLICT (watcher_id, idempotency_key) DO NOTHING RETURNING body_id",
    MESSAGES=parameter_rows(
        place="integer",
        digest="text",
        watcher_id="bigint",
        body_id="bigint",
        lane="text",
        key="text",
        parked_at="timestamptz",
    ),
)
KNOWN: Final = Statement(
    "SELECT m.watcher_id, m.idempotency_key FROM {KEYS} g JOIN parked_message m "
    "ON m.watcher_id = g.watcher_id AND m.idempotency_key = g.key",
    KEYS=parameter_rows(watcher_id="bigint", key="text"),
)
PASS: Final = Statement(
    "DELETE FROM parked_message WHERE state = {state} AND (watcher_id, idempotency_key) IN "
    "(SELECT g.watcher_id, g.key FROM {KEYS} g) RETURNING body_id",
    KEYS=parameter_rows(watcher_id="bigint", key="text"),
)
STORE_FAILURES: Final = Statement(
    "UPDATE parked_message SET failures = {failures} "
    "WHERE watcher_id = {watcher_id} AND idempotency_key = {key} AND state = {state}"
)
RETURN: Final = Statement(
    "UPDATE parked_message SET state = {state}, failures = failures + 1, error = {error}, "
    "traceback = coalesce({traceback}, traceback) WHERE id = {id}"
)
DROP: Final = Statement(
    "DELETE FROM parked_message WHERE id {IDS} RETURNING body_id", IDS=in_list("ids", "bigint")
)
DROP_BODIES: Final = Statement(
    "DELETE FROM parked_body WHERE id {IDS} "
    "AND NOT EXISTS (SELECT 1 FROM parked_message m WHERE m.body_id = parked_body.id)",
    IDS=in_list("ids", "bigint"),
)
PARKING: Final = {
    USAGE,
    TOTAL,
    USED,
    SET_ASIDE,
    STORE,
    KNOWN,
    PASS,
    STORE_FAILURES,
    RETURN,
    DROP,
    DROP_BODIES,
}
"""The statements that `write_parked` yields. The simulated database recognises these objects."""


class Body(NamedTuple):
    """The bytes of a message, with its stream and its idempotency key."""

    stream_digest: str
    key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class StoreBodies:
    """A step: store these bodies (bytes of messages), unless they are stored already.

    For each body, also for one that was stored already, the step returns (stream digest, key, id). The step is no
    `Statement`, because a `Statement` passes rows as JSON, which has no bytes.
    """

    bodies: Sequence[Body]

    def on_sqlite(self, connection: sqlite3.Connection, now: Now) -> list[Row]:
        return [
            row
            for body in self.bodies
            for row in connection.execute(_STORE_BODY_ON_SQLITE, (*body, len(body.data))).fetchall()
        ]

    def on_postgres(self) -> tuple[str, Sequence[Any]]:
        digests, keys, data = zip(*self.bodies, strict=True)
        return _STORE_BODIES_ON_POSTGRES, (digests, keys, data, [len(one) for one in data])


def write_parked(
    changes: Sequence[ParkedChange], bounds: ParkedBounds, usage: ParkedUsage
) -> Script[tuple[frozenset[Fence], list[ParkedChange]]]:
    """Store these changes, each only if its fence holds and the bounds allow it.

    The script stores messages before it deletes those that a watcher no longer needs. One of the changes may store a
    message, and a later one may say that the watcher no longer needs this message.

    Args:
        changes: The changes in the order of submission.
        bounds: How many messages and bytes may be stored.
        usage: The used space. The script updates this object. After an error the object must not be used again.
    Returns:
        The fences that do not hold, and the changes that a bound did not allow.
    """
    fences = {change.fence for change in changes}
    valid = yield from valid_fences(fences)
    written = [change for change in changes if change.fence in valid]
    refused = yield from _store(written, bounds, usage)
    gone, passed = [], []
    for change in written:
        what = change.what
        if isinstance(what, SetAside):
            if not (yield from _set_aside(change.fence, change.watcher_id, what, bounds, usage)):
                refused.append(change)
        elif isinstance(what, Returned):
            yield RETURN(
                id=what.id,
                state=ParkedState.SET_ASIDE.value,
                error=what.error,
                traceback=what.traceback,
            )
        elif isinstance(what, Failed):
            yield STORE_FAILURES(
                watcher_id=change.watcher_id,
                key=what.key,
                failures=what.failures,
                state=ParkedState.KEPT.value,
            )
        elif isinstance(what, Replayed):
            gone.append(what.id)
        elif isinstance(what, Passed):
            passed += [(change.watcher_id, key) for key in what.keys]
    yield from drop_parked(gone)
    if passed:
        rows = yield PASS(rows=ParameterRows(sorted(passed)), state=ParkedState.KEPT.value)
        yield from _drop_bodies(rows)
    return frozenset(fences) - valid, refused


def _store(
    changes: Iterable[ParkedChange], bounds: ParkedBounds, usage: ParkedUsage
) -> Script[list[ParkedChange]]:
    """Store messages for backlogs. The bytes of a message are stored once, even if several watchers need them.

    Returns:
        The changes for which there is no room.
    """
    messages = [(change, what) for change in changes if isinstance(what := change.what, Stored)]
    if not messages:
        return []
    watchers = [change.watcher_id for change, _ in messages]
    yield from usage.read(watchers)
    size_bytes = sum(len(what.data) for _, what in messages)
    known: set[tuple[int, str]] = set()
    if any(not usage.has_room(one, len(messages), size_bytes, bounds) for one in set(watchers)):
        # There seems to be no room. But rows may have been deleted since the usage was read, so read it again.
        usage.forget()
        yield from usage.read(watchers)
        keys = sorted({(change.watcher_id, what.key) for change, what in messages})
        found = yield KNOWN(rows=ParameterRows(keys))
        known.update((watcher_id, key) for watcher_id, key in found)
    bodies: dict[tuple[str, str], Body] = {}
    allowed, refused = [], []
    for place, (change, what) in enumerate(messages):
        size_bytes = len(what.data)
        if (change.watcher_id, what.key) in known:
            # The message is stored already, for instance by a commit whose outcome was unknown.
            continue
        if not usage.has_room(change.watcher_id, 1, size_bytes, bounds):
            refused.append(change)
            continue
        of = change.fence.stream_digest, what.key
        if of not in bodies:
            bodies[of] = Body(*of, what.data)
            assert usage.total_bytes is not None
            usage.total_bytes += size_bytes
        usage.add(change.watcher_id, size_bytes)
        allowed.append((place, change.watcher_id, of, what))
        # A message that was broadcast twice may also be in this group twice.
        known.add((change.watcher_id, what.key))
    if allowed:
        written = yield StoreBodies(list(bodies.values()))
        ids = {(digest, key): id_ for digest, key, id_ in written}
        rows = [
            (place, of[0], watcher_id, ids[of], what.lane, what.key, what.parked_at)
            for place, watcher_id, of, what in allowed
        ]
        new = yield STORE(
            rows=ParameterRows(rows),
            state=ParkedState.KEPT.value,
            else_state=ParkedState.SET_ASIDE.value,
            else_error=NO_LONGER_READ,
        )
        if len(new) < len(rows):
            # Some messages already had a row. If their watcher has moved to this stream, the row may refer to a body of
            # the earlier stream. So delete the new bodies that no row refers to.
            yield from _drop_bodies((body_id,) for body_id in ids.values())
    return refused


def _set_aside(
    fence: Fence, watcher_id: int, what: SetAside, bounds: ParkedBounds, usage: ParkedUsage
) -> Script[bool]:
    digest, size_bytes = fence.stream_digest, len(what.data)
    # An operator may have discarded the stored message since the watcher received it. Then do not park it.
    if what.was_stored and not (yield KNOWN(rows=ParameterRows([(watcher_id, what.key)]))):
        return True
    yield from usage.read([watcher_id])
    if not usage.has_room(watcher_id, 1, size_bytes, bounds):
        # There seems to be no room. But rows may have been deleted since the usage was read, or this message may be
        # stored already. Read the usage again, without this message.
        usage.forget()
        ((messages, used, total),) = yield USED(digest=digest, key=what.key, watcher_id=watcher_id)
        if (
            messages >= bounds.max_messages
            or used + size_bytes > bounds.max_bytes
            or total + size_bytes > bounds.total_bytes
        ):
            return False
    ((*_, body_id),) = yield StoreBodies([Body(digest, what.key, what.data)])
    yield SET_ASIDE(
        watcher_id=watcher_id,
        body_id=body_id,
        lane=what.lane,
        key=what.key,
        state=ParkedState.SET_ASIDE.value,
        failures=what.failures,
        error=what.error,
        traceback=what.traceback,
        parked_at=what.parked_at,
    )
    # If the message already had a row, the row keeps its body. After the watcher moved from another stream, that body
    # is not the new one. Then nothing uses the new body, so delete it.
    yield DROP_BODIES(ids=[body_id])
    usage.mark_set_aside(watcher_id, size_bytes)
    return True


def drop_parked(ids: Collection[int]) -> Script[int]:
    """Delete these messages, and the bytes that no other message needs. Return the number of deleted messages."""
    if not ids:
        return 0
    rows = yield DROP(ids=sorted(ids))
    yield from _drop_bodies(rows)
    return len(rows)


def _drop_bodies(rows: Iterable[Row]) -> Script[None]:
    if ids := sorted({body_id for (body_id,) in rows}):
        yield DROP_BODIES(ids=ids)
