"""Who is behind in the lanes of a queue, when a group begins, and when messages are kept that are to be given again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import Position, decode_lane
from triggerer.domain.watchers.parked import KeptLane
from triggerer.streams.catchup.backlogs.backlog import Lag
from triggerer.streams.catchup.backlogs.backlogs import Lags
from triggerer.streams.catchup.backlogs.stored_lane import KeptInLane
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.supervision.member import HostedTrigger


def begin_group(lags: Lags, state: GroupState, members: Iterable[HostedTrigger]) -> None:
    """The producer is known, and nothing was pulled yet.

    What is known of a log is nothing to a queue, and the other way round: the plugin has changed.
    """
    for lag in lags.all():
        if state.keeps_messages and lag.kept is not None:
            # Its numbers were those of the group before: what that has read and not stored is read again, and what the
            # store answers for it moves nothing any more.
            if lag.taken_by is not None:
                lag.taken_by.forget(lag)
                lag.taken_by = None
            lag.position = lag.read_to = [None, 0]
            lag.blocked = None
            lag.failures = 0
            lag.kept = KeptInLane()
            # Where nothing was durable yet there is nothing to be read.
            lag.is_stored = True
            lags.leave_live(lag)
        elif state.keeps_messages or lag.kept is not None:
            lags.forget(lag)
        else:
            # The group before may have gone on since: what it broadcast and advanced lies behind that end.
            lag.end = None
    if state.keeps_messages:
        for member in members:
            for watcher, one, fence in _of(member, member.spec.kept):
                if lags.find(decode_lane(one.lane), watcher.watcher_id) is None:
                    unread = math.inf if one.messages is None else one.messages
                    _add(lags, watcher, one, fence, [None, 0], KeptInLane(unread))
            # From now on that is known here.
            member.spec = replace(member.spec, kept=())


def enter_kept(
    lags: Lags, state: GroupState, member: HostedTrigger, lanes: Iterable[KeptLane]
) -> None:
    """Messages are kept in these lanes for watchers of a member: they are behind there."""
    for watcher, one, fence in _of(member, lanes):
        _enter(lags, state, watcher, one, fence)


def _of(
    member: HostedTrigger, lanes: Iterable[KeptLane]
) -> Iterator[tuple[WatcherRef, KeptLane, Fence]]:
    fence = member.source.fence
    watchers = {watcher.watcher_id: watcher for watcher in member.source.watchers}
    for one in lanes:
        watcher = watchers.get(one.watcher_id)
        if watcher is not None and fence is not None:
            yield watcher, one, fence


def _enter(lags: Lags, state: GroupState, watcher: WatcherRef, one: KeptLane, fence: Fence) -> None:
    lane = decode_lane(one.lane)
    head = state.head_of(lane)
    # What is outstanding it reads again, even what it has read live: keys absorb that.
    place = [None, state.ledger.head if head is None else head.seq]
    lag = lags.find(lane, watcher.watcher_id)
    if lag is None:
        kept = KeptInLane()
        kept.look_from_first()
        _add(lags, watcher, one, fence, place, kept)
        return
    assert lag.kept is not None
    if lag.is_live:
        lag.position = lag.read_to = place
        lags.leave_live(lag)
    lag.kept.look_from_first()
    # Or else it would wait for a message for which there is no room until these have gone.
    lag.is_stored = True
    lags.note_change(lag)


def _add(
    lags: Lags,
    watcher: WatcherRef,
    one: KeptLane,
    fence: Fence,
    place: Position,
    kept: KeptInLane,
) -> None:
    lane = decode_lane(one.lane)
    lags.enter(
        Lag(watcher, lane, one.lane, one.since, fence, place, place, is_stored=True, kept=kept)
    )
