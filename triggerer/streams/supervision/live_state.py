"""Reads the live state of streams, for reports and metrics.

Any thread may call `read_streams`. It takes no lock, so that reports do not slow the delivery of messages. It iterates
only over copies of containers, and a number that changes meanwhile is at most a moment old.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final, TypeVar

from triggerer.domain.live_state import LaneLive, Pause, StreamLive
from triggerer.domain.watchers.lane_positions import encode_lane
from triggerer.observability.redaction import redact_text
from triggerer.streams.clock import published_at
from triggerer.streams.delivery.group import Group
from triggerer.streams.supervision.manager import Manager
from triggerer.streams.supervision.member import Member, MemberState
from triggerer.streams.supervision.stream import SharedStream

MOST_LANES: Final = 256
_MOST_LANES_IN_ALL: Final = 4_096
_FEWEST_LANES: Final = 4
_MOST_NAMED: Final = 5

_T = TypeVar("_T")


def read_streams(manager: Manager, *, most_lanes: int = MOST_LANES) -> list[StreamLive]:
    """Return the live state of the streams that this process reads, sorted by readable name.

    Args:
        most_lanes: The most lanes to describe for each stream. If there are many streams, the limit is lower. A
            stream's totals cover all of its lanes.
    """
    streams = _copy(manager.streams_by_id.items())
    # All streams of an instance share one row of the store. So the streams divide `_MOST_LANES_IN_ALL` lanes,
    # but each describes up to `_FEWEST_LANES` in any case.
    most = min(most_lanes, max(_FEWEST_LANES, _MOST_LANES_IN_ALL // (len(streams) or 1)))
    found = [_read(stream_id, stream, most) for stream_id, stream in streams]
    return sorted(found, key=lambda one: one.stream)


def _read(stream_id: str, stream: SharedStream, most_lanes: int) -> StreamLive:
    members = _copy(stream.members)
    group = stream.group
    name = redact_text(stream.name)
    counted = stream.counts.read()
    outstanding = outstanding_bytes = lane_count = 0
    lanes: list[LaneLive] = []
    lag_messages, lag_seconds = None, None
    if group is not None:
        state = group.state
        outstanding, outstanding_bytes = group.outstanding, state.lanes.outstanding_bytes
        waiting = _waiting(group)
        found = _lane_views(group, {} if waiting is None else waiting, is_known=waiting is not None)
        lane_count = len(found)
        lanes = nsmallest(most_lanes, found, key=_badness)
        lag_seconds = _lag_seconds(group) if outstanding else 0.0
        lag_messages = None if waiting is None else sum(waiting.values()) + outstanding
    fences = [fence for one in members if (fence := one.source.fence) is not None]
    return StreamLive(
        stream_id=stream_id,
        stream=name,
        system=name.split(" ", 1)[0],
        epoch=max((fence.epoch for fence in fences), default=0),
        consumed=counted.consumed,
        advanced=counted.advanced,
        rejected=counted.rejected,
        failed=counted.failed,
        restarts=stream.counts.restarts,
        outstanding=outstanding,
        outstanding_bytes=outstanding_bytes,
        lag_messages=lag_messages,
        lag_seconds=lag_seconds,
        behind=sum(len(one.catching_up) for one in members),
        failing=sum(one.state is MemberState.FAILING for one in members),
        triggers=len(members),
        paused=list(_pauses(stream, group, members)),
        lane_count=lane_count,
        lanes=lanes,
    )


def _copy(container: Iterable[_T]) -> list[_T]:
    """Return the items of a container that the event loop's thread may change meanwhile."""
    while True:
        try:
            return list(container)
        except RuntimeError:
            # The event loop's thread has added or removed an item during the copy. Copy again.
            continue


def _lane_views(group: Group, waiting: Mapping[Hashable, int], *, is_known: bool) -> list[LaneLive]:
    """Return the lanes that have messages, or that the producer reports as standing.

    Args:
        waiting: By lane, how many messages wait at the broker.
        is_known: False: the producer cannot tell how many messages wait.
    """
    state = group.state
    standing = dict(_copy(state.standing.items()))
    now = state.clock.monotonic()
    unread = {lane: count for lane, count in waiting.items() if count}
    views = []
    for lane in _copy(state.lanes):
        key = lane.key
        at_broker, why = unread.pop(key, 0), standing.pop(key, None)
        if not (lane.outstanding or at_broker or why):
            continue
        views.append(
            LaneLive(
                lane=_lane_name(key),
                outstanding=lane.outstanding,
                outstanding_bytes=lane.outstanding_bytes,
                seconds=None if (head := lane.head) is None else round(now - head.broadcast_at, 3),
                standing=why,
                is_full=key in state.lanes.full,
                lag_messages=at_broker + lane.outstanding if is_known else None,
            )
        )
    # The group has no outstanding message of these lanes.
    for key in {*unread, *standing}:
        lag = unread.get(key, 0) if is_known else None
        views.append(LaneLive(_lane_name(key), 0, 0, None, standing.get(key), False, lag))
    return views


def _badness(lane: LaneLive) -> tuple[bool, bool, float, int]:
    """Return a key that sorts the worst lane first."""
    return (
        lane.standing is None,
        not lane.is_full,
        -(lane.seconds or 0.0),
        -(lane.lag_messages or 0),
    )


def _lane_name(lane: Hashable) -> str:
    return encode_lane(lane) or str(lane)


def _waiting(group: Group) -> Mapping[Hashable, int] | None:
    """Return how many messages wait at the broker, by lane, or None if the producer cannot tell."""
    producer = group.state.producer
    if producer is None:
        return None
    try:
        waiting = producer.get_waiting()
        return None if waiting is None else dict(waiting)
    except Exception:
        # The plugin's code raised, or the event loop's thread changed the mapping during the copy.
        return None


def _lag_seconds(group: Group) -> float | None:
    """Return the seconds since the oldest outstanding message was published or, if that is unknown, was broadcast."""
    state = group.state
    heads = [head for lane in _copy(state.lanes) if (head := lane.head) is not None]
    if not heads:
        return 0.0
    oldest = min(heads, key=lambda one: one.seq)
    seconds = state.clock.monotonic() - oldest.broadcast_at
    events, base = list(state.ledger.events[:1]), state.ledger.base
    event = events[0] if events and base == oldest.seq else None
    at = published_at(oldest.payload) or published_at(event)
    if at is not None:
        seconds = max(seconds, (state.now() - at).total_seconds())
    return round(seconds, 3)


def _pauses(
    stream: SharedStream, group: Group | None, members: Sequence[Member]
) -> Iterator[Pause]:
    """Yield the reasons why the stream, or one of its lanes, pulls no messages now."""
    if group is None:
        yield Pause("restarting", redact_text(stream.last_error) or None)
        return
    state, settings = group.state, group.state.settings
    if state.is_stopping or state.is_closed:
        yield Pause("stopping", None)
    if (
        state.lanes.outstanding >= settings.max_outstanding
        or state.lanes.outstanding_bytes >= settings.max_outstanding_bytes
    ):
        yield Pause("stream_full", None)
    if full := _copy(state.lanes.full):
        yield Pause("lane_full", _named([_lane_name(lane) for lane in full]))
    if state.is_poll_waiting and (slow := group.slow_watchers()):
        yield Pause("slow_watcher", _named(slow))
    if state.blocked_by:
        yield Pause("parked_bound", next((m.blocked_by for m in members if m.blocked_by), None))
    for lane, why in _copy(state.standing.items())[:_MOST_NAMED]:
        yield Pause("standing", f"{_lane_name(lane)}: {why}")


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
