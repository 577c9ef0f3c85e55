"""Adds the backlogs of a queue to `Backlogs`.

This happens when a group begins, when a member joins, and when parked messages are replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, decode_lane
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.backlogs.backlogs import Backlogs
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import Member


def begin_group(backlogs: Backlogs, state: GroupState, members: Iterable[Member]) -> None:
    """Prepare the backlogs for a group whose producer is known and has pulled nothing yet.

    If the plugin has changed from a log to a queue, or back, the backlogs of the other kind are dropped.
    """
    for backlog in backlogs.all():
        if state.stores_messages and backlog.stored_lane is not None:
            # A queue's positions are event numbers. Each group counts its events from 0, so the position is set back to
            # 0. First drop the messages in flight, so that late answers of the store cannot move the new position.
            if backlog.in_flight_by is not None:
                backlog.in_flight_by.forget(backlog)
                backlog.in_flight_by = None
            backlog.position = backlog.cursor = [None, 0]
            backlog.blocked = None
            backlog.failures = 0
            backlog.stored_lane = StoredLane()
            # Let the reader begin at once: each message that the watcher misses is in the store, or the broker
            # redelivers it.
            backlog.is_stored = True
            backlogs.leave_live(backlog)
        elif state.stores_messages or backlog.stored_lane is not None:
            backlogs.forget(backlog)
        else:
            # Look up the lane's end again, because an earlier group may have broadcast messages beyond the known end.
            backlog.end = None
    if state.stores_messages:
        for member in members:
            for watcher, one, fence in _of(member, member.spec.stored_lanes):
                if backlogs.find(decode_lane(one.lane), watcher.watcher_id) is None:
                    unread = math.inf if one.messages is None else one.messages
                    _add(backlogs, watcher, one, fence, [None, 0], StoredLane(unread))
            # `Backlogs` has these lanes from now on, so a later group must not add them again.
            member.spec = replace(member.spec, stored_lanes=())


def enter_stored(
    backlogs: Backlogs, state: GroupState, member: Member, lanes: Iterable[StoredBacklog]
) -> None:
    """Add a backlog for each lane that has stored messages of a member's watchers."""
    for watcher, one, fence in _of(member, lanes):
        _enter(backlogs, state, watcher, one, fence)


def _of(
    member: Member, lanes: Iterable[StoredBacklog]
) -> Iterator[tuple[WatcherRef, StoredBacklog, Fence]]:
    fence = member.source.fence
    watchers = {watcher.watcher_id: watcher for watcher in member.source.watchers}
    for one in lanes:
        watcher = watchers.get(one.watcher_id)
        if watcher is not None and fence is not None:
            yield watcher, one, fence


def _enter(
    backlogs: Backlogs, state: GroupState, watcher: WatcherRef, one: StoredBacklog, fence: Fence
) -> None:
    lane = decode_lane(one.lane)
    head = state.head_of(lane)
    # The watcher reads all outstanding messages of the lane again, even messages that its live filter has read.
    # Idempotency keys prevent repeated events.
    position = [None, state.ledger.next_seq if head is None else head.seq]
    backlog = backlogs.find(lane, watcher.watcher_id)
    if backlog is None:
        stored = StoredLane()
        stored.restart_reading()
        _add(backlogs, watcher, one, fence, position, stored)
        return
    assert backlog.stored_lane is not None
    if backlog.is_caught_up:
        backlog.position = backlog.cursor = position
        backlogs.leave_live(backlog)
    backlog.stored_lane.restart_reading()
    # Let the reader begin at once, even while a message is being stored. If the store is full, that message waits until
    # the reader has made room.
    backlog.is_stored = True
    backlogs.record_change(backlog)


def _add(
    backlogs: Backlogs,
    watcher: WatcherRef,
    one: StoredBacklog,
    fence: Fence,
    position: Position,
    stored: StoredLane,
) -> None:
    lane = decode_lane(one.lane)
    backlogs.enter(
        Backlog(
            watcher,
            lane,
            one.lane,
            one.since,
            fence,
            position,
            position,
            is_stored=True,
            stored_lane=stored,
        )
    )
