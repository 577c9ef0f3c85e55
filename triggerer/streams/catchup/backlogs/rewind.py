"""Rewinds one watcher in one lane of a log, and stores the new position. Synchronous, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import (
    Position,
    Reemission,
    ReplayRequest,
    encode_lane,
    is_before,
    is_same_log,
)
from triggerer.errors import GroupEnded, LeaseLost
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.delivery.group_state import GroupState


class Rewind:
    """One replay in one lane: lets the watcher's backlog begin at the replay's start.

    A live watcher stays live until the new position is durable, so that the stream need not wait for the store. The
    replay also repeats the messages that the watcher receives meanwhile, up to `end`.

    Args:
        start: Where the replay begins. If an earlier message is outstanding, or has events that are not durable, the
            replay begins at that message instead.
        end: The end of the lane, from the last look-up.
        on_stored: Called once, with None if the position is durable, otherwise with an error. After `GroupEnded` the
            next group must begin the replay again.
        is_open: Returns False once the request no longer counts in this stream, because the watcher has left.
    """

    def __init__(
        self,
        state: GroupState,
        watcher: WatcherRef,
        fence: Fence,
        lane: Hashable,
        request: ReplayRequest,
        start: Position,
        end: Position,
        on_stored: Callable[[Exception | None], None],
        *,
        is_open: Callable[[], bool],
    ) -> None:
        self._state = state
        self._watcher = watcher
        self._fence = fence
        self._lane = lane
        self._request = request
        self._start = start
        self._end = end
        self._on_stored = on_stored
        self._is_open = is_open

    def begin(self) -> None:
        """Begin the replay in this lane. `on_stored` may be called at once."""
        backlogs = self._state.backlogs
        backlog = backlogs.find(self._lane, self._watcher.watcher_id)
        if backlog is None:
            new = self._make()
            backlogs.writes.store_ahead(new, lambda error: self._enter(new, error))
            return
        aim = self._aim(backlog)
        if aim is None:
            self._on_stored(None)
            return
        position, reemit = aim
        backlog.log_end = self._end[1]
        backlogs.rewind_from(backlog, position, reemit, self._state.now(), self._on_stored)

    def _make(self) -> Backlog:
        stored_as = encode_lane(self._lane)
        assert stored_as is not None
        begin_at = self._begin_at(None)
        return Backlog(
            self._watcher,
            self._lane,
            stored_as,
            self._state.now(),
            self._fence,
            begin_at,
            begin_at,
            log_end=self._end[1],
            reemit=self._reemission,
            rewound_to=begin_at,
        )

    @property
    def _reemission(self) -> Reemission | None:
        if not self._request.reemit:
            return None
        return Reemission(self._request.id, self._start, self._end)

    def _begin_at(self, backlog: Backlog | None) -> Position:
        """Return where the replay begins: `start`, or an earlier position with messages that must be read too.

        A message must be read if it is outstanding, or if its events are not durable.
        """
        must_be_read = [
            self._state.lowest_outstanding(self._lane),
            None if backlog is None else backlog.position,
        ]
        earliest = self._start
        for position in must_be_read:
            if position is not None and is_before(position, earliest):
                earliest = position
        return earliest

    def _aim(self, backlog: Backlog) -> tuple[Position, Reemission | None] | None:
        """Return the new position and re-emission of an existing backlog, or None if the backlog needs no change."""
        reemit, known = self._reemission, backlog.reemit
        if backlog.is_caught_up:
            return self._begin_at(backlog), reemit
        if not is_same_log(backlog.position, self._start):
            # The lane was recreated, so the watcher reads the whole lane anyway.
            return None
        if reemit is not None and known is not None and known.request == reemit.request:
            # An earlier owner began this replay and stored the position, and has died since.
            return None
        if not is_before(self._start, backlog.position):
            # The watcher is behind at an earlier position, so it reads the replay's messages anyway. The backlog needs
            # a change only if the replay re-emits events and no open re-emission covers these messages.
            if reemit is None or (
                known is not None
                and not is_before(self._start, known.start)
                and is_before(backlog.position, known.until)
            ):
                return None
            return backlog.position, reemit
        return self._start, reemit or known

    def _enter(self, new: Backlog, error: Exception | None) -> None:
        """Add the backlog if its position is durable now. Otherwise report why not."""
        if error is not None:
            self._on_stored(error)
            return
        if not self._is_open():
            # The watcher has left the stream, and this position ended with that. A watcher that has come back begins
            # its replay again.
            self._on_stored(LeaseLost("the watcher left the stream before it was rewound"))
            return
        if self._state.is_ending:
            self._on_stored(
                GroupEnded("the group ended before the watcher was rewound", key=self._state.key)
            )
            return
        try:
            with plugin_code(f"get_position() of the shared stream {self._state.name}"):
                self._enter_or_begin_again(new)
        except Exception as raised:
            # The caller is the task that stores the positions of all streams, so it must not fail. The next owner of
            # the stream repeats the replay.
            self._on_stored(raised)

    def _enter_or_begin_again(self, new: Backlog) -> None:
        outstanding = self._state.lowest_outstanding(self._lane)
        is_known = self._state.backlogs.find(self._lane, self._watcher.watcher_id) is not None
        if is_known or (outstanding is not None and is_before(outstanding, new.position)):
            # Begin again, because meanwhile the watcher has fallen behind, or the poll has broadcast an earlier
            # message.
            self.begin()
            return
        head = self._state.head_of(self._lane)
        new.broadcast_to = None if head is None else self._state.last_broadcast_from(head)
        self._state.backlogs.enter(new)
        self._on_stored(None)
