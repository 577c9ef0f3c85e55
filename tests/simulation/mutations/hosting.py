"""Bugs in the division of streams among instances, and in the placing of triggers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.domain.events import Fence, WatcherRef
from triggerer.hosting import roster
from triggerer.hosting import stream_division as division
from triggerer.hosting.ownership import Ownership
from triggerer.hosting.reconciliation import Reconciliation
from triggerer.hosting.roster import Difference, Roster
from triggerer.hosting.stream_division import StreamDivision
from triggerer.store.watchers.hosting import StreamLoad, TriggerRow

_UNLIMITED = 10**9


@mutation(rules="L1", seed=148)
def a_claim_starves_a_stream() -> Replacements:
    """An instance claims only its share, although the others have no room for the rest."""
    right = division.divide

    def divide(*arguments: Any, **options: Any) -> StreamDivision:
        return replace(right(*arguments, **options), beyond=frozenset())

    yield right, divide


@mutation(rules="S9", seed=4, quick=True)
def a_host_ignores_its_capacity() -> Replacements:
    """A host claims its share of the streams without regard to its capacity."""
    right_ownership = Ownership.__init__

    def init(self: Ownership, *arguments: Any, **options: Any) -> None:
        right_ownership(self, *arguments, **{**options, "capacity": _UNLIMITED})

    yield right_ownership, init
    yield from late_declarations_exceed_the_capacity()


@mutation(rules="S9", seed=402)
def late_declarations_exceed_the_capacity() -> Replacements:
    """A host starts triggers that were declared after the streams were divided, although it has no room for them."""
    right = Reconciliation.__init__

    def init(self: Reconciliation, *arguments: Any, **options: Any) -> None:
        right(self, *arguments, **{**options, "capacity": _UNLIMITED})

    yield right, init


@mutation(rules="L1|L3|S9", seed=32)
def a_host_keeps_a_stream_that_outgrew_its_capacity() -> Replacements:
    """A host keeps a stream that has outgrown its room, and no other host gets the stream."""

    def outgrows(size: int, room: int) -> bool:
        return False

    yield division._outgrows, outgrows


@mutation(rules="L4", seed=89, quick=True)
def a_stream_that_did_not_grow_gives_way() -> Replacements:
    """The order of the streams' names decides which stream a host without room gives up."""

    def ungrown_first(
        self: Roster, fences: Iterable[Fence], loads: Iterable[StreamLoad]
    ) -> list[Fence]:
        return list(fences)

    yield Roster.ungrown_first, ungrown_first


@mutation(rules="L4", seed=0, quick=True)
def every_parse_recreates_the_triggers() -> Replacements:
    """A trigger is deleted and made again whenever its file is parsed, although nothing about it has changed."""

    def difference(self: Roster, rows: Collection[TriggerRow]) -> Difference:
        rewound = [row for row in rows if row.replays]
        return Difference(list(self._by_member.values()), [], list(rows), [], rewound=rewound)

    yield Roster.difference, difference


@mutation(rules="S11", seed=76, quick=True)
def a_replaced_trigger_stops_before_its_successor_is_loaded() -> Replacements:
    """A trigger whose arguments changed stops while its successor is loading, and does not count as absent."""
    right = Difference.on_streams_of

    def on_streams_of(self: Difference, is_ready: Callable[[TriggerRow], bool]) -> Difference:
        return replace(right(self, is_ready), gone=self.gone)

    yield right, on_streams_of


@mutation(rules="S13|S2/S7|S11", seed=270)
def a_shared_trigger_forgets_a_watcher_that_left() -> Replacements:
    """A watcher that leaves a shared trigger misses the messages that the trigger had not resolved."""

    def moved(before: Iterable[TriggerRow], after: Iterable[TriggerRow]) -> set[WatcherRef]:
        return set()

    yield roster._moved, moved
