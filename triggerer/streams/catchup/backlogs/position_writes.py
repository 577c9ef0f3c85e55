"""Hands the positions of backlogs to the store. Synchronous, no I/O."""

from __future__ import annotations

from collections.abc import Callable

from triggerer.domain.watchers.lane_positions import (
    Position,
    PositionChange,
    PositionSink,
    ReplayEnd,
)
from triggerer.errors import LeaseLost
from triggerer.streams.catchup.backlogs.backlog import Backlog


class PositionWrites:
    """Submits the positions of one stream's backlogs, and the ends of its replays, to the sink."""

    def __init__(self, sink: PositionSink | None) -> None:
        self._sink = sink
        self._is_closed = False

    def close(self) -> None:
        """Submit no further position, even if events become durable.

        A new `SharedStream` for this key may begin under the same lease. A late write of the closed stream would
        replace the positions of the new stream.
        """
        self._is_closed = True

    def move(self, backlog: Backlog) -> None:
        """Store the backlog's position: at once, or when the write of an earlier position has ended."""
        if backlog.stored_lane is not None:
            return
        if backlog.is_being_written:
            backlog.is_dirty = True
        elif not backlog.is_gone:
            backlog.is_dirty, backlog.is_being_written = False, True

            def on_answer(error: Exception | None) -> None:
                backlog.is_being_written = False
                if backlog.is_dirty and error is None:
                    self.move(backlog)

            self.submit(backlog, backlog.stored_position, on_answer)

    def store_ahead(self, backlog: Backlog, on_stored: Callable[[Exception | None], None]) -> None:
        """Store the position of a new backlog. The caller adds the backlog once the position is durable."""
        backlog.is_stored = True
        self.submit(backlog, backlog.stored_position, on_stored)

    def submit(
        self,
        backlog: Backlog,
        position: Position | None,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Store a position of the backlog, or delete the backlog's row if `position` is None.

        Args:
            on_done: Called once, when the position is durable or was refused.
        """
        assert self._sink is not None
        if self._is_closed:
            on_done(LeaseLost("the stream was closed"))
            return
        self._sink.submit_nowait(
            PositionChange(
                backlog.fence,
                backlog.watcher.watcher_id,
                backlog.stored_as,
                position,
                backlog.since,
                backlog.stored_log_end,
                backlog.failures if position == backlog.cursor else 0,
                on_done,
                backlog.reemit,
                backlog.rewound_to,
            )
        )

    def submit_end(self, end: ReplayEnd) -> None:
        """Delete the row that requests a replay, because the replay is done or impossible."""
        assert self._sink is not None
        if self._is_closed:
            end.on_done(LeaseLost("the stream was closed"))
        else:
            self._sink.end_replay_nowait(end)
