"""What one transaction writes of messages that are parked for watchers (`triggerer.store.queries.parked`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from triggerer.domain.parked import ParkedState
from triggerer.store.queries import parked
from triggerer.store.queries.parked import PARKING
from triggerer.testing.simulation.delivery import ParkedRow

if TYPE_CHECKING:
    from triggerer.store.engine.script import Row
    from triggerer.store.engine.statement import Statement
    from triggerer.testing.simulation.store import Store

PARKED: Final = PARKING
"""The statements."""
_KEPT: Final = ParkedState.KEPT.value


Decision = Literal["replay", "discard"] | None
"""What a person does about a parked message; None: nothing now."""


class Locks(Protocol):
    """The transaction that it is a part of."""

    store: Store

    async def lock_row(self, name: str) -> None: ...


class ParkedWrites:
    """Durable, all at once, when `apply` is called. Locked as a whole: transactions on it come one after another."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], ParkedRow] | None = None
        """By watcher and key, as this transaction sees them; None: it has not looked."""
        self._bodies: dict[int, tuple[str, str]] = {}
        """By the id that this transaction was given."""
        self._discarded: set[tuple[int, str]] = set()

    async def perform(
        self, session: Locks, statement: Statement, values: Mapping[str, Any]
    ) -> list[Row]:
        store = session.store
        rows = await self._lock(session)
        if statement is parked.TOTAL:
            return [(sum(len(key) for _, key in {row.body for row in rows.values()}),)]
        if statement is parked.USAGE:
            return [(one, *self._usage(one)) for one in values["watchers"]]
        if statement is parked.USED:
            others = {row.body for row in rows.values()} - {(values["digest"], values["key"])}
            total = sum(len(key) for _, key in others)
            return [(*self._usage(values["watcher_id"], but=values["key"]), total)]
        if statement is parked.KEEP_BODY:
            id_ = store.next_id()
            self._bodies[id_] = values["digest"], values["key"]
            return [(id_,)]
        if statement is parked.KEEP:
            for _, watcher, body, lane, key, parked_at in sorted(values["rows"].rows):
                at = watcher, key
                if at not in rows:
                    rows[at] = ParkedRow(
                        store.next_id(), watcher, self._bodies[body], lane, key, _KEPT, 0, parked_at
                    )
        elif statement is parked.KNOWN:
            return [at for at in values["rows"].rows if tuple(at) in rows]
        elif statement is parked.PASS:
            for watcher, key in values["rows"].rows:
                row = rows.get((watcher, key))
                if row is not None and row.is_kept:
                    del rows[watcher, key]
        elif statement is parked.NOTE_FAILURES:
            at = values["watcher_id"], values["key"]
            if at in rows and rows[at].is_kept:
                rows[at] = replace(rows[at], failures=values["failures"])
        elif statement is parked.SET_ASIDE:
            at = values["watcher_id"], values["key"]
            known = rows.get(at)
            rows[at] = ParkedRow(
                known.id if known is not None else store.next_id(),
                values["watcher_id"],
                self._bodies[values["body_id"]],
                values["lane"],
                values["key"],
                values["state"],
                values["failures"],
                values["parked_at"],
                was_set_aside=True,
            )
        return []

    async def _lock(self, session: Locks) -> dict[tuple[int, str], ParkedRow]:
        """All of them are locked until the end of the transaction."""
        if self._rows is None:
            await session.lock_row("parked messages")
            self._rows = dict(session.store.parked)
        await session.store.faults.delay()
        return self._rows

    # What a person decides

    async def decide(self, session: Locks, decide: Callable[[ParkedRow], Decision]) -> set[str]:
        """Replay or discard what is parked; the digests of the streams of what is replayed."""
        rows, replayed = await self._lock(session), set[str]()
        for at, row in list(rows.items()):
            decision = decide(row)
            if decision == "discard":
                del rows[at]
                self._discarded.add(at)
            elif decision == "replay" and not row.is_kept:
                rows[at] = replace(row, state=_KEPT)
                replayed.add(row.body[0])
        return replayed

    def _usage(self, watcher: int, but: str | None = None) -> tuple[int, int]:
        assert self._rows is not None
        sizes = [
            len(row.key) for row in self._rows.values() if row.watcher == watcher and row.key != but
        ]
        return len(sizes), sum(sizes)

    def apply(self, store: Store) -> None:
        """The transaction commits."""
        if self._rows is None:
            return
        streams = {
            watcher.watcher_id: row.stream_digest
            for row in store.triggers.values()
            for watcher in row.watchers
        }
        lagging, before = store.checker.lagging, dict(store.parked)
        store.parked.clear()
        for at, row in self._rows.items():
            is_orphan = row.is_kept and streams.get(row.watcher) != row.body[0]
            state = ParkedState.SET_ASIDE.value if is_orphan else row.state
            now = store.parked[at] = replace(row, state=state)
            was_kept = at not in before or before[at].is_kept
            if was_kept and not now.is_kept:
                lagging.on_set_aside(row.watcher, row.key)
            elif now.is_kept and not was_kept:
                lagging.on_replayed(row.watcher, row.key)
        lagging.check_bounds(before)
        for at in before.keys() | self._rows.keys():
            if before.get(at) != self._rows.get(at):
                store.checker.trace("parked", row=self._rows.get(at) or f"{at} is gone")
        for at, row in before.items():
            if at in self._discarded:
                lagging.on_discarded(row.watcher, row.key)
            elif at not in self._rows and row.is_kept:
                lagging.on_row_gone(row.watcher, row.key)
        for row in self._rows.values():
            lagging.note_place(row)
