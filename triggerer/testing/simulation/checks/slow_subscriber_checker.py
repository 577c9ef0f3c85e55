"""Checks rule 8 of the contract: if a subscriber makes a sibling wait, the subscriber must soon fall behind.

Only groups whose watchers can fall behind are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from triggerer.streams.delivery.group import Group
    from triggerer.streams.delivery.lane import Entry, Lane
    from triggerer.streams.delivery.subscriber import Subscriber

_SLACK_S: Final = 1.0
"""A delay may exceed the overflow grace by this many seconds, because the runtime needs some turns of the event loop.
"""
_Delay = tuple[str, Hashable, "Subscriber"]
"""The kind of the pause ("stream" or "lane"), its key, and the subscriber that is to blame."""


class Pauses(Protocol):
    """The pauses that the runtime has requested from a producer."""

    @property
    def is_paused(self) -> bool:
        """Whether the whole stream is paused."""

    @property
    def paused(self) -> Collection[Hashable]:
        """The paused lanes."""

    @property
    def pulled_lane(self) -> Hashable:
        """The lane of the message that the runtime has pulled but not broadcast; None if there is no such message."""


class SlowSubscriberChecker:
    """Checks for how long a subscriber's unresolved messages pause the stream or a lane.

    This checker reads the unresolved messages from the runtime's own ledger. Checks of other rules verify the ledger.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._since: WeakKeyDictionary[Group, dict[_Delay, float]] = WeakKeyDictionary()

    def check(self, group: Group, pauses: Pauses, *, is_store_slow: bool, now: float) -> None:
        """Check a group whose watchers can fall behind. Called at each step.

        Args:
            now: The seconds since the start, without standstills of the process.
        """
        state = group.state
        is_excused = (
            is_store_slow
            or state.is_ending
            or state.is_stopping
            or bool(state.blocked_by)
            or not state.may_act
            # A watcher has fallen behind, and its message stays outstanding until its backlog is stored.
            or any(not backlog.is_stored for backlog in state.backlogs.all())
            or any(one.pending.count >= one.pending.limit for one in group.subscribers)
        )
        before = self._since.get(group, {})
        delays = () if is_excused else self._find(group, pauses)
        since = {one: before.get(one, now) for one in delays}
        if since or before:
            self._since[group] = since
        bound = state.settings.overflow_grace + _SLACK_S
        for (what, key, subscriber), at in since.items():
            if now - at > bound:
                self._fail(
                    "L6",
                    f"{subscriber.name} has delayed {what} {key} of {state.key} for {now - at:.3f} s, while a sibling"
                    " waits for messages",
                )

    def _find(self, group: Group, pauses: Pauses) -> Iterator[_Delay]:
        state, settings, subscribers = group.state, group.state.settings, list(group.subscribers)
        ledger, next_seq = state.ledger, state.ledger.next_seq
        if pauses.is_paused and any(one.done >= next_seq for one in subscribers):
            for one in subscribers:
                left = ledger.entries[max(one.done - ledger.base, 0) :]
                is_queue_full = next_seq - one.pulled >= settings.subscriber_queue_size
                bounds = settings.max_outstanding, settings.max_outstanding_bytes
                if (is_queue_full or _are_most(left, *bounds)) and _is_passed(group, left[0]):
                    yield "stream", state.key, one
        keys = set(pauses.paused)
        if pauses.is_paused and (pulled := pauses.pulled_lane) is not None:
            keys.add(pulled)
        for key in sorted(keys, key=str):
            if (lane := state.lanes.get(key)) is not None and lane.tail is not None:
                yield from (("lane", key, one) for one in _slow_in(group, lane, lane.tail))


def _slow_in(group: Group, lane: Lane, tail: Entry) -> Iterator[Subscriber]:
    """Yield the subscribers whose unresolved messages exceed half of the lane's limit, in number or in bytes.

    Yield nothing unless a sibling has resolved all of the lane's messages, so that it waits for more.
    """
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
    """Whether a present subscriber without a backlog in the lane has resolved this message."""
    lane, backlogs = entry.lane, group.state.backlogs.by_lane
    assert lane is not None
    behind = backlogs.get(lane.key, {}).keys()
    return any(
        one.done > entry.seq
        and not one.admission.was_absent
        and behind.isdisjoint(ref.watcher_id for ref in one.source.watchers)
        for one in group.subscribers
    )


def _entries_of(lane: Lane) -> Iterator[Entry]:
    entry = lane.head
    while entry is not None:
        yield entry
        entry = entry.next


def _are_most(left: Iterable[Entry], bound: int, bound_bytes: int) -> bool:
    """Whether these messages exceed half of the bound in number, or half of the bound in bytes."""
    sizes = [entry.size_bytes for entry in left]
    return len(sizes) > bound // 2 or sum(sizes) > bound_bytes // 2
