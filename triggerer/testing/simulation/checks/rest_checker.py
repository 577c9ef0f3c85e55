"""What must be gone when everything has come to rest: what is dealt with leaves nothing behind (L5)."""

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


_HELD = "its stream is held"
"""So begins what is shown of a watcher whose stream waits for room for another."""


class RestChecker:
    """Notes what the owner of a stream must know, by which it is judged what may stay.

    Args:
        fail: Called with the rule that was broken, and how.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self.rows: Mapping[tuple[int, int], PositionRow] = {}
        """By watcher and lane, where it stands: the rows of the store."""
        self.replays: Mapping[int, ReplayRequest] = {}
        """By id what is asked of watchers: likewise."""
        self.states: Mapping[int, WatcherState] = {}
        """By watcher how it is shown: likewise."""
        self._fail = fail
        self._counted = 0
        self._advanced: dict[tuple[Owner, int], list[tuple[int, int]]] = {}
        """By owner and lane, up to which offsets advances that returned have told the broker, each with when."""
        self._begun: dict[tuple[int, int], int] = {}
        """By watcher and lane since when there is a row, or what it makes again."""
        self._given = Counter[tuple[int, str]]()
        """By watcher and message, how often a filter that catches up was given it."""

    def mark_advanced(self, delivery: Delivery) -> None:
        """It was the last of an advance that has returned, and had not failed."""
        at = delivery.consumer.owner, delivery.message.lane
        self._counted += 1
        self._advanced.setdefault(at, []).append((self._counted, delivery.message.offset + 1))

    def on_given(self, watcher: int, message: Message) -> None:
        """A filter of the watcher's that catches up is given a message whose events count."""
        self._given[watcher, message.key] += 1

    def on_row(self, watcher: int, before: PositionRow | None, row: PositionRow) -> None:
        """The row of a watcher was written: the failures that it counts are those of the message at which it stands."""
        if before is None or before.reemit != row.reemit:
            self._begun[watcher, row.lane] = self._counted
        key = f"{row.topic}/{row.lane}/{row.offset}"
        if row.failures > self._given[watcher, key]:
            self._fail(
                "S13",
                f"watcher {watcher} has failed {row.failures} times with {key}, as its row says, and was given it"
                f" {self._given[watcher, key]} times",
            )

    def find_left(
        self,
        owner: Owner,
        stream: SharedStream,
        watchers: Sequence[int],
        lanes: Sequence[LaneOfBroker],
    ) -> str | None:
        """What has stayed of a stream of which all is read; None: nothing.

        Args:
            owner: Under whose lease it is hosted.
            stream: As it is hosted.
            watchers: Those that are declared.
            lanes: Of its topic.
        """
        rows = {at: row for at, row in self.rows.items() if row.topic == owner.fence.stream_digest}
        # What the store refuses of the message at which they stand, they never get.
        standing = {
            at
            for at, row in rows.items()
            if max(row.offset, lanes[at[1]].starts[-1]) < len(lanes[at[1]].messages)
        }
        found = (
            *self._rows_left(owner, rows, standing, lanes),
            *self._states_left(owner.fence, watchers, {watcher for watcher, _ in standing}),
            *self._replays_left(watchers),
            *_backlogs_left(stream, rows, standing),
        )
        return next(iter(found), None)

    def _rows_left(
        self,
        owner: Owner,
        rows: Mapping[tuple[int, int], PositionRow],
        standing: set[tuple[int, int]],
        lanes: Sequence[LaneOfBroker],
    ) -> Iterator[str]:
        """Positions to which the broker was advanced by this owner, since it opened the stream and the row is there.

        It does not know what the broker was told before: with such a row it waits for the lane's next message.
        """
        for (watcher, lane), row in rows.items():
            since = self._begun.get((watcher, lane), 0)
            advances = self._advanced.get((owner, lane), [])
            told = max((offset for at, offset in advances if at > since), default=-1)
            # Not by what was told of the end of a log that was made anew.
            is_known = told >= row.offset and told > lanes[lane].starts[-1]
            if (watcher, lane) not in standing and is_known:
                yield (
                    f"the position {row.offset} of watcher {watcher} in lane {lane} of {row.topic} stays, and the"
                    f" broker was advanced to {told}"
                )

    def _replays_left(self, watchers: Sequence[int]) -> Iterator[str]:
        """What is asked, and is neither done nor refused."""
        for request in self.replays.values():
            if request.watcher_id in watchers:
                yield f"it is still asked that watcher {request.watcher_id} is set back ({request.id})"

    def _states_left(
        self, fence: Fence, watchers: Sequence[int], standing: set[int]
    ) -> Iterator[str]:
        """Watchers that are shown as if something were the matter with them."""
        for watcher in watchers:
            shown = self.states.get(watcher)
            if shown is None or shown.fence != fence:
                yield f"watcher {watcher} is not shown under {fence}"
            elif shown.state != "running" and watcher not in standing:
                yield f"watcher {watcher} is shown as {shown.state} ({shown.error})"
            elif shown.error is not None and shown.error.startswith(_HELD):
                yield f"watcher {watcher} is shown with {shown.error!r}"


def _backlogs_left(
    stream: SharedStream,
    rows: Mapping[tuple[int, int], PositionRow],
    standing: set[tuple[int, int]],
) -> Iterator[str]:
    """What the owner keeps in memory of watchers that are behind nowhere."""
    backlogs = stream.behind.backlogs
    for watcher, lane in rows:
        if backlogs.find(lane, watcher) is None:
            yield f"its owner does not know that watcher {watcher} has a position in lane {lane} of {stream.key}"
    for backlog in backlogs.all():
        at = backlog.watcher.watcher_id, backlog.lane
        name = f"the lag of watcher {at[0]} in lane {backlog.lane!r} of {stream.key}"
        if backlog.stored_lane is not None or at not in rows:
            yield f"{name} stays in memory"
        elif at not in standing and not backlog.is_caught_up:
            yield f"{name} is not live, and nothing lies behind"
        elif backlog.blocked is not None and not _is_blocked(backlog):
            yield f"{name} is blocked at {backlog.blocked.position}, and has read to {backlog.cursor}"
    for member in stream.members:
        for watcher_id in member.catching_up:
            if not backlogs.count_behind(watcher_id):
                yield f"watcher {watcher_id} of {stream.key} counts as catching up, and is behind nowhere"
    group = stream.group
    if group is None:
        return
    if lanes := [lane for lane in group.state.lane_tail if lane not in backlogs.by_lane]:
        yield f"messages of {stream.key} are kept in memory for lanes in which nobody is behind: {lanes}"
    if group.state.blocked_by:
        yield f"{stream.key} is held for {list(group.state.blocked_by)}"


def _is_blocked(backlog: Backlog) -> bool:
    return backlog.blocked is not None and backlog.blocked.position == backlog.cursor
