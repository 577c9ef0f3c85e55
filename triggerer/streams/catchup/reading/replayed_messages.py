"""Replays parked messages: when an operator asks for it, their watcher's filter receives the messages again."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import structlog

from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.parked import (
    ParkedChange,
    ParkedStore,
    Replayed,
    Returned,
    StoredMessage,
)
from triggerer.errors import ConfigurationError, StoreError
from triggerer.observability.error_texts import error_text, traceback_text
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.processing.in_flight import ReplayedMessageInFlight
from triggerer.streams.delivery.group_state import GroupState

_log = structlog.get_logger(__name__)

_PAGE: Final = 100


async def give_back(watcher: WatcherRef, fence: Fence, parked: ParkedStore) -> None:
    """Park the replayed messages of a watcher again, because its trigger has no producer that could load them.

    A `StoreError` is logged, not raised: the messages are found again at the next search for replays.
    """
    error = error_text(
        ConfigurationError(
            "it cannot be given to its watcher, which reads no shared stream in ack mode now"
        )
    )
    after = 0
    try:
        while rows := await parked.read_stored(fence, watcher.watcher_id, after, _PAGE):
            after = rows[-1].id
            for row in rows:
                what = Returned(row.id, error, None)
                parked.submit_nowait(ParkedChange(fence, watcher.watcher_id, what, _ignore))
    except StoreError as failure:
        _log.warning("messages could not be parked again", error=error_text(failure))


def _ignore(_: Exception | None) -> None:
    pass


class ReplayedMessages:
    """The replayed messages of one watcher, read from the store in pages, in the order of parking.

    The filter receives each message once. A message that fails is parked again. No lane waits for a replayed message,
    because the later messages of its lane were read long ago.
    """

    def __init__(
        self, watcher: WatcherRef, fence: Fence, state: GroupState, parked: ParkedStore
    ) -> None:
        self.are_waiting = False
        """True if the store may have messages that the filter has not received."""
        self._watcher = watcher
        self._fence = fence
        self._state = state
        self._parked = parked
        self._page: deque[StoredMessage] = deque()
        self._after = 0
        self._under_way: set[int] = set()
        """The ids of the rows that were read, but whose outcome is not durable."""

    def restart_reading(self) -> None:
        """Read from the first message on, because an operator asked for a replay."""
        self.are_waiting = True
        self._after = 0

    async def next(self) -> ReplayedMessageInFlight | None:
        """Load and return the next message, or None if no message is left.

        Raises:
            StoreError: The store cannot be read now.
        """
        producer = self._state.producer
        assert producer is not None
        while row := await self._next_row():
            try:
                with plugin_code(f"load_event() of {type(producer).__qualname__}"):
                    event: Any = producer.load_event(row.data)
            except Exception as error:
                self._submit(row, Returned(row.id, error_text(error), traceback_text(error)))
                continue
            return ReplayedMessageInFlight(row, event, self._fence)
        return None

    async def _next_row(self) -> StoredMessage | None:
        if not self._page:
            after = self._after
            rows = await self._parked.read_stored(
                self._fence, self._watcher.watcher_id, after, _PAGE
            )
            if self._after != after:
                # `restart_reading` was called meanwhile, so begin again with the first row.
                return await self._next_row()
            if not rows:
                self.are_waiting = False
                return None
            self._after = rows[-1].id
            self._page.extend(row for row in rows if row.id not in self._under_way)
            self._under_way.update(row.id for row in self._page)
            return await self._next_row()
        return self._page.popleft()

    def mark_passed(self, in_flight: ReplayedMessageInFlight) -> None:
        """Delete the row of a message whose events are all durable."""
        self._submit(in_flight.row, Replayed(in_flight.row.id))

    def mark_failed(self, in_flight: ReplayedMessageInFlight, error: BaseException) -> None:
        """Park a message again."""
        in_flight.is_dropped = True
        _log.warning(
            "a message failed again and is parked",
            message=in_flight.row.id,
            error=error_text(error),
        )
        what = Returned(in_flight.row.id, error_text(error), traceback_text(error))
        self._submit(in_flight.row, what)

    def _submit(self, row: StoredMessage, what: Returned | Replayed) -> None:
        def on_answer(_: Exception | None) -> None:
            # If the write was refused, the row stays as it was, and is found after the next call of `restart_reading`.
            self._under_way.discard(row.id)

        change = ParkedChange(self._fence, self._watcher.watcher_id, what, on_answer)
        self._state.submit_parked(change)
