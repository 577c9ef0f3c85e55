"""The stored and parked messages that one transaction writes (`triggerer.store.watchers.parked`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from triggerer.domain.watchers.parked import ParkedState
from triggerer.store.watchers import parked, parked_usage
from triggerer.store.watchers.parked import PARKING, StoreBodies, drop_parked
from triggerer.testing.simulation.kernel.delivery import ParkedBody, ParkedRow, size_of_bodies

if TYPE_CHECKING:
    from triggerer.store.database.script import Row, Script
    from triggerer.store.database.statement import Statement
    from triggerer.testing.simulation.database.model import Store

PARKED: Final = PARKING
"""The statements on parked messages."""
_KEPT: Final = ParkedState.KEPT.value
_OF_BYTES: Final = {parked.DROP, parked.DROP_BODIES}
"""Statements that are sent together with the statement before them, so they take no further time."""

_Result = TypeVar("_Result")

Decision = Literal["replay", "discard"] | None
"""The operator's decision about a parked message. None: leave the message for now."""


class Locks(Protocol):
    """The transaction that the writes belong to."""

    store: Store

    async def lock_row(self, name: str) -> None: ...

    async def perform(self, script: Script[_Result]) -> _Result: ...


class ParkedWrites:
    """Collects writes, which `apply` makes durable all at once.

    One lock covers all rows of parked messages, so transactions that write them come one after another.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], ParkedRow] | None = None
        """By watcher and key, the rows that this transaction sees; None before its first statement."""
        self._bodies: dict[ParkedBody, int] = {}
        """The ids of the bodies that this transaction sees."""
        self._set_aside: dict[tuple[int, str], ParkedRow] = {}
        """The messages that the owner of the stream parks."""
        self._discarded: set[tuple[int, str]] = set()

    async def perform(
        self, session: Locks, statement: Statement, values: Mapping[str, Any]
    ) -> list[Row]:
        store = session.store
        rows = await self._lock(session)
        if statement not in _OF_BYTES:
            await store.faults.delay()
        if statement is parked_usage.TOTAL:
            return [(size_of_bodies({row.body for row in rows.values()}),)]
        if statement is parked_usage.USAGE:
            return [(one, *self._usage(one)) for one in values["watchers"]]
        if statement is parked.USED:
            one, all_ = (values["digest"], values["key"]), {row.body for row in rows.values()}
            total = size_of_bodies(body for body in all_ if body[:2] != one)
            return [(*self._usage(values["watcher_id"], but=values["key"]), total)]
        if statement is parked.STORE:
            new: list[Row] = []
            for _, _, watcher, body_id, lane, key, parked_at in sorted(values["rows"].rows):
                at = watcher, key
                if at not in rows:
                    body = self._body(body_id)
                    rows[at] = ParkedRow(
                        store.next_id(), watcher, body, lane, key, _KEPT, 0, parked_at
                    )
                    new.append((body_id,))
            return new
        if statement is parked.KNOWN:
            return [at for at in values["rows"].rows if tuple(at) in rows]
        elif statement is parked.PASS:
            return [
                self._drop(at)
                for at in map(tuple, values["rows"].rows)
                if at in rows and rows[at].is_stored
            ]
        elif statement is parked.STORE_FAILURES:
            at = values["watcher_id"], values["key"]
            if at in rows and rows[at].is_stored:
                rows[at] = replace(rows[at], failures=values["failures"])
        elif statement is parked.SET_ASIDE:
            self._mark_set_aside(store, rows, values)
        else:
            return self._perform_by_id(rows, statement, values)
        return []

    async def keep_bodies(self, session: Locks, step: StoreBodies) -> list[Row]:
        await self._lock(session)
        rows: list[Row] = []
        for one in step.bodies:
            # Writing a body takes time for each message, because a body may be large.
            await session.store.faults.delay()
            body = ParkedBody(one.stream_digest, one.key, one.data.decode())
            id_ = self._bodies.setdefault(body, session.store.next_id())
            rows.append((one.stream_digest, one.key, id_))
        return rows

    def _mark_set_aside(
        self, store: Store, rows: dict[tuple[int, str], ParkedRow], values: Mapping[str, Any]
    ) -> None:
        at = values["watcher_id"], values["key"]
        known = rows.get(at)
        rows[at] = self._set_aside[at] = ParkedRow(
            known.id if known is not None else store.next_id(),
            values["watcher_id"],
            self._body(values["body_id"]),
            values["lane"],
            values["key"],
            values["state"],
            values["failures"],
            values["parked_at"],
            was_set_aside=True,
        )

    def _perform_by_id(
        self,
        rows: dict[tuple[int, str], ParkedRow],
        statement: Statement,
        values: Mapping[str, Any],
    ) -> list[Row]:
        """Perform a statement on rows that it names by their ids, or on bodies without a row."""
        if statement is parked.RETURN:
            for at, row in rows.items():
                if row.id == values["id"]:
                    rows[at] = replace(row, state=values["state"], failures=row.failures + 1)
        elif statement is parked.DROP:
            chosen = [at for at, row in rows.items() if row.id in values["ids"]]
            return [self._drop(at) for at in chosen]
        elif statement is parked.DROP_BODIES:
            used = {row.body for row in rows.values()}
            for body in [body for body, id_ in self._bodies.items() if id_ in values["ids"]]:
                if body not in used:
                    del self._bodies[body]
        return []

    def _drop(self, at: tuple[int, str]) -> Row:
        assert self._rows is not None
        return (self._bodies[self._rows.pop(at).body],)

    def _body(self, body_id: int) -> ParkedBody:
        return next(body for body, id_ in self._bodies.items() if id_ == body_id)

    async def _lock(self, session: Locks) -> dict[tuple[int, str], ParkedRow]:
        """Lock all rows until the end of the transaction."""
        if self._rows is None:
            await session.lock_row("parked messages")
            self._rows = dict(session.store.parked)
            self._bodies = dict(session.store.parked_bodies)
        return self._rows

    # The operator

    async def decide(self, session: Locks, decide: Callable[[ParkedRow], Decision]) -> set[str]:
        """Replay or discard parked messages. Return the digests of the streams with replayed messages."""
        rows, replayed = await self._lock(session), set[str]()
        await session.store.faults.delay()
        for at, row in list(rows.items()):
            decision = decide(row)
            if decision == "discard":
                self._discarded.add(at)
            elif decision == "replay" and not row.is_stored:
                rows[at] = replace(row, state=_KEPT)
                replayed.add(row.body[0])
        await session.perform(drop_parked([rows[at].id for at in self._discarded]))
        return replayed

    def _usage(self, watcher: int, but: str | None = None) -> tuple[int, int]:
        assert self._rows is not None
        bodies = [
            row.body for row in self._rows.values() if row.watcher == watcher and row.key != but
        ]
        return len(bodies), size_of_bodies(bodies)

    def apply(self, store: Store) -> None:
        """Commit all writes."""
        if self._rows is None:
            return
        streams = {
            watcher.watcher_id: row.stream_digest
            for row in store.triggers.values()
            for watcher in row.watchers
        }
        catching_up, before = store.checker.catching_up, dict(store.parked)
        store.parked.clear()
        for at, row in self._rows.items():
            is_orphan = row.is_stored and streams.get(row.watcher) != row.body[0]
            state = ParkedState.SET_ASIDE.value if is_orphan else row.state
            now = store.parked[at] = replace(row, state=state)
            was_kept = at not in before or before[at].is_stored
            if was_kept and not now.is_stored:
                catching_up.on_set_aside(row.watcher, row.message)
            elif now.is_stored and not was_kept:
                catching_up.on_replayed(row.watcher, row.message)
        store.parked_bodies.clear()
        store.parked_bodies.update(self._bodies)
        for at in sorted(before.keys() | self._rows.keys()):
            if before.get(at) != self._rows.get(at):
                store.checker.trace("parked", row=self._rows.get(at) or f"{at} is gone")
        for at, row in before.items():
            if at in self._discarded:
                catching_up.on_discarded(row.watcher, row.message)
            elif at not in self._rows:
                catching_up.on_row_gone(row)
        for row in self._rows.values():
            catching_up.record_row(row)
        store.checker.parked.check(before, self._set_aside.values(), store.parked_bodies)
