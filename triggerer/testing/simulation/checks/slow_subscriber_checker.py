"""Checks that who holds up a sibling that waits for more falls behind soon, where it can (contract, rule 8)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from triggerer.streams.delivery.group import Group
    from triggerer.streams.delivery.lanes import Entry, Lane
    from triggerer.streams.delivery.subscriber import Subscriber

_SLACK_S: Final = 1.0
"""Beyond the overflow grace, for the turns that the runtime needs."""
_Held = tuple[str, Hashable, "Subscriber"]


class Pauses(Protocol):
    """What a producer was told to pause."""

    @property
    def is_paused(self) -> bool:
        """Whether the whole stream is."""

    @property
    def paused(self) -> Collection[Hashable]:
        """The lanes."""

    @property
    def held_lane(self) -> Hashable:
        """That of what the poll holds; None: it holds nothing."""


class SlowSubscriberChecker:
    """Follows each group: what is paused, as its producer was told, and by whose cursor; since when at a stretch.

    The cursors are those of the ledger, which other rules hold to what the filters were given.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._since: WeakKeyDictionary[Group, dict[_Held, float]] = WeakKeyDictionary()

    def check(self, group: Group, pauses: Pauses, *, is_store_slow: bool, now: float) -> None:
        """To be called at each step of a group whose watchers may fall behind.

        Args:
            now: The seconds in which something could run.
        """
        state = group.state
        is_excused = (
            is_store_slow
            or state.is_ending
            or state.is_stopping
            or bool(state.blocked_by)
            or not state.may_act
            # Who has fallen behind already: until that is durable, the message stays outstanding whatever others do.
            or any(not backlog.is_stored for backlog in state.backlogs.all())
            or any(one.pending.count >= one.pending.limit for one in group.subscribers)
        )
        before = self._since.get(group, {})
        held = () if is_excused else self._find(group, pauses)
        since = {one: before.get(one, now) for one in held}
        if since or before:
            self._since[group] = since
        bound = state.settings.overflow_grace + _SLACK_S
        for (what, key, subscriber), at in since.items():
            if now - at > bound:
                self._fail(
                    "L6",
                    f"{subscriber.name} has held up {what} {key} of {state.key} for {now - at:.3f} s, while a sibling"
                    " waits for more",
                )

    def _find(self, group: Group, pauses: Pauses) -> Iterator[_Held]:
        state, settings, subscribers = group.state, group.state.settings, list(group.subscribers)
        ledger, head = state.ledger, state.ledger.head
        if pauses.is_paused and any(one.done >= head for one in subscribers):
            for one in subscribers:
                left = ledger.entries[max(one.done - ledger.base, 0) :]
                is_queue_full = head - one.pulled >= settings.subscriber_queue_size
                bounds = settings.max_outstanding, settings.max_outstanding_bytes
                if (is_queue_full or _are_most(left, *bounds)) and _is_passed(group, left[0]):
                    yield "stream", state.key, one
        keys = set(pauses.paused)
        if pauses.is_paused and (held := pauses.held_lane) is not None:
            keys.add(held)
        for key in sorted(keys, key=str):
            if (lane := state.lanes.get(key)) is not None and lane.tail is not None:
                yield from (("lane", key, one) for one in _holders(group, lane, lane.tail))


def _holders(group: Group, lane: Lane, tail: Entry) -> Iterator[Subscriber]:
    if not _is_passed(group, tail):
        return
    settings, ledger = group.state.settings, group.state.ledger
    bounds = settings.max_outstanding_per_lane, settings.max_outstanding_bytes_per_lane
    entries = list(_entries_of(lane))
    for one in group.subscribers:
        left = [entry for entry in entries if entry.seq >= one.done]
        if _are_most(left, *bounds) and _is_passed(group, ledger.entry(one.done)):
            yield one


def _is_passed(group: Group, entry: Entry) -> bool:
    """Whether somebody has taken this message who is, and was, behind nowhere in its lane."""
    lane, backlogs = entry.lane, group.state.backlogs.by_lane
    assert lane is not None
    behind = backlogs.get(lane.key, {}).keys()
    return any(
        one.done > entry.seq
        and not one.was_absent
        and behind.isdisjoint(ref.watcher_id for ref in one.source.watchers)
        for one in group.subscribers
    )


def _entries_of(lane: Lane) -> Iterator[Entry]:
    entry = lane.head
    while entry is not None:
        yield entry
        entry = entry.next


def _are_most(left: Iterable[Entry], bound: int, bound_bytes: int) -> bool:
    """Whether these are more than half of one of the bounds."""
    sizes = [entry.size_bytes for entry in left]
    return len(sizes) > bound // 2 or sum(sizes) > bound_bytes // 2
