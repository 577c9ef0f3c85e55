"""Checks at the end of a seed that finished work has left no rows, no states and nothing in memory (L5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from triggerer.testing.simulation.kernel.delivery import PositionRow

if TYPE_CHECKING:
    from triggerer.domain.events import Fence
    from triggerer.domain.watchers.lane_positions import ReplayRequest
    from triggerer.store.watchers.hosting import WatcherState
    from triggerer.streams.catchup.backlogs.backlog import Backlog
    from triggerer.streams.supervision.stream import SharedStream
    from triggerer.testing.simulation.kernel.delivery import Delivery, LaneOfBroker, Message, Owner


_STREAM_WAITS = "its stream waits"
"""The beginning of a watcher's error while the watcher's stream waits for room to store another watcher's messages."""


class RestChecker:
    """Finds rows, states and backlogs that a stream's owner should have deleted.

    Args:
        fail: Called with the broken rule and the details.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self.rows: Mapping[tuple[int, int], PositionRow] = {}
        """The store's rows of positions, by watcher and lane."""
        self.replays: Mapping[int, ReplayRequest] = {}
        """The store's rows of replays, by id."""
        self.states: Mapping[int, WatcherState] = {}
        """The store's states of watchers, by watcher."""
        self._fail = fail
        self._counted = 0
        self._advanced: dict[tuple[Owner, int], list[tuple[int, int]]] = {}
        """By owner and lane: for each advance that returned, its number and the offset after its last message."""
        self._begun: dict[tuple[int, int], int] = {}
        """By watcher and lane: the number of the last advance before the position's row was added, or before the row's
        `reemit` changed.
        """
        self._given = Counter[tuple[int, str]]()
        """How often a filter that catches up got a message, by watcher and message."""

    def mark_advanced(self, delivery: Delivery) -> None:
        """Record that an advance has returned.

        `delivery` is the advance's last message, or the last message before the first failed one.
        """
        at = delivery.consumer.owner, delivery.message.lane
        self._counted += 1
        self._advanced.setdefault(at, []).append((self._counted, delivery.message.offset + 1))

    def on_given(self, watcher: int, message: Message) -> None:
        """Record a message that the watcher's catch-up gives to its filter, other than a probe."""
        self._given[watcher, message.key] += 1

    def on_row(self, watcher: int, before: PositionRow | None, row: PositionRow) -> None:
        """Check that a written row counts at most as many failures as its message has had attempts."""
        if before is None or before.reemit != row.reemit:
            self._begun[watcher, row.lane] = self._counted
        key = f"{row.topic}/{row.lane}/{row.offset}"
        if row.failures > self._given[watcher, key]:
            self._fail(
                "S13",
                f"the row of watcher {watcher} counts {row.failures} failures with {key}, which its filter got"
                f" {self._given[watcher, key]} times",
            )

    def find_left(
        self,
        owner: Owner,
        stream: SharedStream,
        watchers: Sequence[int],
        lanes: Sequence[LaneOfBroker],
    ) -> str | None:
        """Describe the rows that are left over or missing in the store after a stream was read to its end; None: none.

        Args:
            owner: The lease under which the stream is hosted.
            stream: The hosted stream.
            watchers: The declared watchers of the stream.
            lanes: The lanes of the stream's topic.
        """
        rows = {at: row for at, row in self.rows.items() if row.topic == owner.fence.stream_digest}
        # Each watcher with a lane that it has not read to the end, because the store refuses an event.
        behind = {
            at
            for at, row in rows.items()
            if max(row.offset, lanes[at[1]].starts[-1]) < len(lanes[at[1]].messages)
        }
        found = (
            *self._rows_left(owner, rows, behind, lanes),
            *self._states_left(owner.fence, watchers, {watcher for watcher, _ in behind}),
            *self._replays_left(watchers),
            *_backlogs_left(stream, rows, behind),
        )
        return next(iter(found), None)

    def _rows_left(
        self,
        owner: Owner,
        rows: Mapping[tuple[int, int], PositionRow],
        behind: set[tuple[int, int]],
        lanes: Sequence[LaneOfBroker],
    ) -> Iterator[str]:
        """Yield a description of each position row that is left, although the owner has advanced the broker past it.

        An advance counts only if it came after the row was added. Without such an advance, the row may stay until the
        lane's next message.
        """
        for (watcher, lane), row in rows.items():
            since = self._begun.get((watcher, lane), 0)
            advances = self._advanced.get((owner, lane), [])
            advanced_to = max((offset for at, offset in advances if at > since), default=-1)
            # An advance from before a topic was recreated says nothing about the new topic.
            is_known = advanced_to >= row.offset and advanced_to > lanes[lane].starts[-1]
            if (watcher, lane) not in behind and is_known:
                yield (
                    f"the position {row.offset} of watcher {watcher} in lane {lane} of {row.topic} stays, although the"
                    f" broker was advanced to {advanced_to}"
                )

    def _replays_left(self, watchers: Sequence[int]) -> Iterator[str]:
        """Yield descriptions of replays that are neither done nor refused."""
        for request in self.replays.values():
            if request.watcher_id in watchers:
                yield f"the replay {request.id} of watcher {request.watcher_id} is not done"

    def _states_left(
        self, fence: Fence, watchers: Sequence[int], behind: set[int]
    ) -> Iterator[str]:
        """Yield descriptions of watchers whose state shows a problem although they are well."""
        for watcher in watchers:
            shown = self.states.get(watcher)
            if shown is None or shown.fence != fence:
                yield f"watcher {watcher} is not shown under {fence}"
            elif shown.state != "running" and watcher not in behind:
                yield f"watcher {watcher} is shown as {shown.state} ({shown.error})"
            elif shown.error is not None and shown.error.startswith(_STREAM_WAITS):
                yield f"watcher {watcher} is shown with {shown.error!r}"


def _backlogs_left(
    stream: SharedStream,
    rows: Mapping[tuple[int, int], PositionRow],
    behind: set[tuple[int, int]],
) -> Iterator[str]:
    """Yield descriptions of data of finished catch-ups in the owner's memory."""
    backlogs = stream.behind.backlogs
    for watcher, lane in rows:
        if backlogs.find(lane, watcher) is None:
            yield f"the owner of {stream.key} does not know the position of watcher {watcher} in lane {lane}"
    for backlog in backlogs.all():
        at = backlog.watcher.watcher_id, backlog.lane
        name = f"the backlog of watcher {at[0]} in lane {backlog.lane!r} of {stream.key}"
        if backlog.stored_lane is not None or at not in rows:
            yield f"{name} stays in memory"
        elif at not in behind and not backlog.is_caught_up:
            yield f"{name} is at the end of the lane, but not live"
        elif backlog.blocked is not None and not _is_blocked(backlog):
            yield f"{name} is blocked at {backlog.blocked.position}, and has read to {backlog.cursor}"
    for member in stream.members:
        for watcher_id in member.catching_up:
            if not backlogs.count_behind(watcher_id):
                yield f"watcher {watcher_id} of {stream.key} counts as catching up without a backlog"
    group = stream.group
    if group is None:
        return
    if lanes := [lane for lane in group.state.lane_tail if lane not in backlogs.by_lane]:
        yield f"{stream.key} has lane tails for lanes without a backlog: {lanes}"
    if group.state.blocked_by:
        yield f"{stream.key} still waits for room for {list(group.state.blocked_by)}"


def _is_blocked(backlog: Backlog) -> bool:
    return backlog.blocked is not None and backlog.blocked.position == backlog.cursor
