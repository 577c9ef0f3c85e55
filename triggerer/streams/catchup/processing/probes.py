"""Tries other messages, called *probes*, when one message fails again and again.

The probes show whether this message is poison, or whether the watcher fails every message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import aclosing
from typing import Final

import anyio

from triggerer.abc import SharedStreamProducer
from triggerer.domain.watchers.lane_positions import Position, following, is_before
from triggerer.errors import PluginError
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.reading.lane_ends import find_positions
from triggerer.streams.catchup.reading.lane_tail import LogMessage
from triggerer.streams.catchup.reading.queue_reader import QueueMessage, QueueReader
from triggerer.streams.delivery.group_state import GroupState

_MOST_FAILED: Final = 10
_MOST_WITHOUT_EVIDENCE: Final = 1_000
"""After the filter has only skipped this number of probes, the lane's failed message is tried again."""
_BATCH: Final = 20
_MOST: Final = 100
"""A queue's probes are chosen from at most this number of messages."""
_WAIT_S: Final = 2.0
"""The time limit for reading probes from a log. Without a limit, `read_lane` would wait at the lane's end for ever."""


class _LaneProbes:
    """The probes for one backlog's failed message: candidates, and outcomes so far."""

    __slots__ = (
        "candidates",
        "failed",
        "has_passed",
        "is_exhausted",
        "keys",
        "last_read",
        "without_evidence",
    )

    def __init__(self, position: Position) -> None:
        self.last_read = position
        """The position of the last message that was read for probes."""
        self.keys: set[str | None] = set()
        """The keys of a queue's probes that were chosen already."""
        self.candidates: deque[LogMessage | QueueMessage] = deque()
        self.failed = 0
        self.without_evidence = 0
        self.has_passed = False
        self.is_exhausted = False


class Probes:
    """The probes of one watcher, for each lane with a failed message.

    Probes are tried once a message has failed `max_deliveries` times:

    - If the filter derives an event from a probe, or rejects it, the failed message is poison, and probing ends.
    - If ten probes fail, the watcher is down, and probing ends.
    - If the filter skips a probe, the probe proves nothing, because a filter may skip most messages.
    - If no probe is left, the failed message is tried again, and then probing continues with later messages.

    Events of a probe are not stored.
    """

    def __init__(self, state: GroupState, queue: QueueReader | None = None) -> None:
        self._state = state
        self._queue = queue
        self._probes: dict[Backlog, _LaneProbes] = {}

    def is_due(self, backlog: Backlog) -> bool:
        """Return whether a probe must be tried before the lane's failed message is tried again."""
        if backlog.failures < self._state.settings.max_deliveries:
            return False
        probes = self._probes.get(backlog)
        return probes is None or not (
            probes.has_passed or probes.is_exhausted or probes.failed >= _MOST_FAILED
        )

    def blames_message(self, backlog: Backlog) -> bool:
        """Return whether the filter has accepted a probe, so that the failed message must be poison."""
        probes = self._probes.get(backlog)
        return probes is not None and probes.has_passed

    async def next(self, backlog: Backlog) -> LogMessage | QueueMessage | None:
        """Return the next probe, or None if there is none now.

        Raises:
            Exception: The producer's error.
        """
        probes = self._probes.get(backlog)
        if probes is None:
            probes = self._probes[backlog] = _LaneProbes(backlog.cursor)
        if not probes.candidates and probes.without_evidence < _MOST_WITHOUT_EVIDENCE:
            if self._queue is None:
                await self._fill(backlog, probes)
            else:
                await self._fill_from_queue(backlog, probes, self._queue)
        if probes.candidates:
            return probes.candidates.popleft()
        probes.is_exhausted = True
        return None

    def mark_failed(self, backlog: Backlog) -> None:
        """Record that the filter failed with a probe."""
        probes = self._probes.get(backlog)
        if probes is not None:
            probes.failed += 1

    def mark_passed(self, backlog: Backlog, *, is_evidence: bool) -> None:
        """Record that the filter moved past a probe.

        Args:
            is_evidence: True if the filter derived an event from the probe, or rejected it.
        """
        probes = self._probes.get(backlog)
        if probes is not None:
            probes.has_passed |= is_evidence
            probes.without_evidence += not is_evidence

    def allow_more(self, backlog: Backlog) -> None:
        """Allow further probes, because the message failed again, and later messages may have arrived since."""
        probes = self._probes.get(backlog)
        if probes is not None:
            probes.is_exhausted = False
            probes.without_evidence = 0

    def forget(self, backlog: Backlog) -> None:
        """Forget the lane's probes, because the failures for which they were tried no longer count."""
        self._probes.pop(backlog, None)

    async def _fill(self, backlog: Backlog, probes: _LaneProbes) -> None:
        producer = self._state.producer
        assert producer is not None
        end = self._end_of(backlog)
        found = await _read_some(producer, backlog.lane, following(probes.last_read), end, _BATCH)
        if found:
            probes.last_read = found[-1].position
        elif not (probes.failed or probes.without_evidence):
            found = await self._first_of_other_lanes(producer, backlog.lane)
        probes.candidates.extend(found)

    async def _first_of_other_lanes(
        self, producer: SharedStreamProducer, lane: Hashable
    ) -> list[LogMessage]:
        """Return the first messages of some other lanes, one per lane. Search briefly: the watcher's lanes wait."""
        clock, found = self._state.clock, list[LogMessage]()
        firsts = await find_positions(producer, None)
        ends = await self._state.lane_ends.find(producer, clock, after=clock.monotonic())
        until = clock.monotonic() + _WAIT_S
        for other, first in firsts.items():
            end = ends.get(other)
            if other != lane and end is not None and is_before(first, end):
                found += await _read_some(producer, other, first, end, 1)
                if len(found) >= _BATCH or clock.monotonic() >= until:
                    break
        return found

    async def _fill_from_queue(
        self, backlog: Backlog, probes: _LaneProbes, queue: QueueReader
    ) -> None:
        found = [
            one
            for one in await queue.probe_candidates(backlog, _MOST)
            if one.key not in probes.keys
        ]
        probes.keys.update(one.key for one in found[:_BATCH])
        probes.candidates.extend(found[:_BATCH])

    def _end_of(self, backlog: Backlog) -> Position | None:
        newest = self._state.lane_tail_of(backlog.lane).newest
        return backlog.end if newest is None else following(newest)


async def _read_some(
    producer: SharedStreamProducer,
    lane: Hashable,
    position: Position,
    end: Position | None,
    most: int,
) -> list[LogMessage]:
    """Read up to `most` messages of a lane from `position` on. Stop after `_WAIT_S`, or at `end` if it is known."""
    found: list[LogMessage] = []
    if end is not None and not is_before(position, end):
        return found

    def is_at_end(reached: Position) -> bool:
        return end is not None and not is_before(reached, end)

    with plugin_code(f"read_lane() of {lane!r}"), anyio.move_on_after(_WAIT_S) as reading:

        def mark_passed(reached: Position) -> None:
            if is_at_end(reached):
                reading.cancel()

        pairs = producer.read_lane_reporting(lane, position, mark_passed)
        if not isinstance(pairs, AsyncGenerator):
            raise PluginError(
                f"read_lane() of {type(producer).__qualname__} returned {type(pairs).__qualname__}"
            )
        async with aclosing(pairs):
            async for event, payload in pairs:
                found.append(LogMessage(producer.get_position(payload), event, payload))
                if len(found) >= most or is_at_end(following(found[-1].position)):
                    break
    return found
