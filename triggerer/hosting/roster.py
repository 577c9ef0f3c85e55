"""The triggers that an instance hosts, and how they differ from the rows in the store. Synchronous, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.domain.text.storable import storable_text
from triggerer.observability.error_texts import error_text, traceback_text
from triggerer.observability.redaction import hide_known
from triggerer.store.watchers.hosting import StreamLoad, TriggerRow, WatcherState
from triggerer.streams import Member
from triggerer.streams.supervision.member import MemberState


@dataclass(slots=True)
class HostedTrigger:
    """A hosted trigger, its row, and the lease under which it runs."""

    row: TriggerRow
    fence: Fence
    member: Member


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that make the hosted triggers match the rows in the store. Removals must come first."""

    gone: list[HostedTrigger]
    """Triggers to remove."""
    changed: list[tuple[HostedTrigger, TriggerRow]]
    """Triggers whose watchers have changed: some were deleted, or are new."""
    new: list[TriggerRow]
    """Triggers to add."""
    replays_parked: list[tuple[HostedTrigger, TriggerRow]]
    """Hosted triggers with watchers whose parked messages are being replayed."""
    alive: Collection[int] = frozenset()
    """The ids of the watchers that are still declared although their trigger is removed."""
    rewound: Collection[TriggerRow] = ()
    """Triggers with watchers for which an operator asked to replay the log."""

    def outliving(self, hosted: HostedTrigger) -> tuple[WatcherRef, ...]:
        """Return the watchers of a removed trigger that are still declared. Its other watchers were deleted."""
        return tuple(one for one in hosted.row.watchers if one.watcher_id in self.alive)

    def on_streams_of(self, is_ready: Callable[[TriggerRow], bool]) -> Difference:
        """Return the changes of each stream whose new triggers are all ready.

        All triggers of a stream start together, so that each of them receives the first message.
        """
        waiting = {row.stream_digest for row in self.new if not is_ready(row)}
        if not waiting:
            return self
        return Difference(
            [p for p in self.gone if p.fence.stream_digest not in waiting],
            [(p, row) for p, row in self.changed if row.stream_digest not in waiting],
            [row for row in self.new if row.stream_digest not in waiting],
            [(p, row) for p, row in self.replays_parked if row.stream_digest not in waiting],
            self.alive,
            [row for row in self.rewound if row.stream_digest not in waiting],
        )


class Roster:
    """The triggers that this instance hosts.

    A trigger moves to another stream if its class now derives another stream key. Each stream changes only once all of
    its new triggers are ready. So for a moment the trigger may be hosted on both streams.
    """

    def __init__(self) -> None:
        self._by_member: dict[Member, HostedTrigger] = {}
        self._by_stream: dict[str, dict[int, HostedTrigger]] = {}

    def add(self, hosted: HostedTrigger) -> None:
        self._by_member[hosted.member] = hosted
        self._by_stream.setdefault(hosted.fence.stream_digest, {})[hosted.row.trigger_id] = hosted

    def of(self, member: Member) -> HostedTrigger | None:
        """Return the hosted trigger of a member. None: this instance no longer hosts the member."""
        return self._by_member.get(member)

    def find(self, row: TriggerRow) -> HostedTrigger | None:
        """Return the hosted trigger of a row. None: the trigger is not hosted on the row's stream."""
        return self._by_stream.get(row.stream_digest, {}).get(row.trigger_id)

    def drop(self, hosted: HostedTrigger) -> None:
        self._by_member.pop(hosted.member, None)
        siblings = self._by_stream.get(hosted.fence.stream_digest, {})
        siblings.pop(hosted.row.trigger_id, None)
        if not siblings:
            self._by_stream.pop(hosted.fence.stream_digest, None)

    def on_stream(self, digest: str) -> list[HostedTrigger]:
        return list(self._by_stream.get(digest, {}).values())

    def ungrown_first(self, fences: Iterable[Fence], loads: Iterable[StreamLoad]) -> list[Fence]:
        """Sort the leases. Streams with triggers that are not hosted yet come last, and are given up first."""
        sizes = {load.digest: load.triggers for load in loads}

        def has_grown(fence: Fence) -> bool:
            hosted = self._by_stream.get(fence.stream_digest, {})
            return sizes.get(fence.stream_digest, 0) > len(hosted)

        return sorted(fences, key=has_grown)

    def difference(self, rows: Collection[TriggerRow]) -> Difference:
        """Compare the hosted triggers with the rows of the streams that this instance owns.

        A trigger is removed and added again in two cases:

        - Its class derives another stream key now, so the trigger belongs to another stream with another lease.
        - A watcher has moved between this trigger and another trigger of the stream.

        The removal fails the messages that the trigger has not resolved, so its watchers receive them again.
        """
        wanted = {(row.trigger_id, row.stream_digest): row for row in rows}
        hosted = {(p.row.trigger_id, p.fence.stream_digest): p for p in self._by_member.values()}
        pairs = {key: (p, wanted[key]) for key, p in hosted.items() if key in wanted}
        others = {key for key, (p, row) in pairs.items() if p.row.watchers != row.watchers}
        if others:
            moved = _moved([p.row for p in hosted.values()], rows)
            for key in others:
                p, row = pairs[key]
                if not moved.isdisjoint({*p.row.watchers} ^ {*row.watchers}):
                    del pairs[key]
        gone = [p for key, p in hosted.items() if key not in pairs]
        changed = [pairs[key] for key in wanted if key in pairs and key in others]
        new = [row for key, row in wanted.items() if key not in pairs]
        parked = [pairs[key] for key, row in wanted.items() if key in pairs and row.stored_lanes]
        rewound = [row for row in rows if row.replays]
        return Difference(gone, changed, new, parked, rewound=rewound)


def _moved(before: Iterable[TriggerRow], after: Iterable[TriggerRow]) -> set[WatcherRef]:
    """Return the watchers that have moved to another trigger of the same stream."""
    served_by, was_served_by = (
        {(one, row.stream_digest): row.trigger_id for row in rows for one in row.watchers}
        for rows in (after, before)
    )
    return {
        watcher
        for (watcher, digest), trigger_id in was_served_by.items()
        if served_by.get((watcher, digest), trigger_id) != trigger_id
    }


def source_of(row: TriggerRow, fence: Fence) -> EventSource:
    """Return the source of the trigger's events."""
    return EventSource(row.watchers, fence)


def states_of(
    hosted: HostedTrigger, error_before: BaseException | None = None
) -> list[WatcherState]:
    """Return the states of a hosted trigger's watchers, as they are shown to users.

    Args:
        error_before: The error of the trigger's last failure, as long as the trigger does not count as working again.
    """
    return [_state_of(hosted, watcher.watcher_id, error_before) for watcher in hosted.row.watchers]


def _state_of(
    hosted: HostedTrigger, watcher_id: int, error_before: BaseException | None
) -> WatcherState:
    member = hosted.member
    state, error = str(member.state), member.error
    if error_before is not None and member.state is MemberState.RUNNING:
        state, error = str(MemberState.FAILING), error_before
    if watcher_id in member.catching_up and member.state is not MemberState.FAILING:
        error = member.catching_up[watcher_id]
        state = "catching_up" if error is None else str(MemberState.FAILING)
    if member.standing is not None and error is None:
        why = "; ".join(filter(None, (member.standing, member.refusals.latest)))
        stands = hide_known(storable_text(why))
        failing = str(MemberState.FAILING)
        return WatcherState(watcher_id, hosted.row.trigger_id, failing, stands, hosted.fence)
    refused = member.refusals.latest
    if (replay_error := member.replay_errors.get(watcher_id)) is not None:
        refused = f"it was not rewound: {error_text(replay_error)}"
    if member.blocked_by is not None:
        refused = f"its stream waits: the store has no room for messages of {member.blocked_by}"
    said = None if refused is None else hide_known(storable_text(refused))
    return WatcherState(
        watcher_id,
        hosted.row.trigger_id,
        state,
        said if error is None else error_text(error),
        hosted.fence,
        None if error is None else traceback_text(error),
    )
