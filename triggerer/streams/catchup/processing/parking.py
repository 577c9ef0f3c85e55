"""Parks a message of a backlog: sets it aside with its error, so that its lane continues (contract, rule 18).

Messages are parked in four cases:

- A watcher that catches up rejects a message or fails it too often (`catchup.processing.outcomes`, with this module).
- A live watcher rejects a message (`delivery.rejected`).
- A stored message cannot be loaded (`catchup.reading.queue_reader`).
- A watcher with stored messages is deleted, or moves to another stream (`store.watchers.stored_backlog`).
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import structlog

from triggerer.abc import SharedStreamProducer
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.parked import Failed, ParkedChange, Passed, SetAside
from triggerer.errors import LeaseLost, ParkedFull
from triggerer.observability.error_texts import error_text, traceback_text
from triggerer.streams.cancellation import plugin_code
from triggerer.streams.catchup.backlogs.backlog import Backlog
from triggerer.streams.catchup.processing.in_flight import LaneMessageInFlight
from triggerer.streams.catchup.reading.queue_reader import QueueMessage
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.producer_answers import dump_event

_log = structlog.get_logger(__name__)


class Parking:
    """Parks the messages of one watcher.

    Args:
        name: The watcher's name, for the log.
        tasks: Runs the producer's `dead_letter` for a message that cannot be parked, because a limit of parked messages
            is reached. This call may outlast the catch-up.
    """

    def __init__(
        self,
        watcher: WatcherRef,
        name: str,
        state: GroupState,
        context: RuntimeContext,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        self._watcher = watcher
        self._name = name
        self._state = state
        self._context = context
        self._tasks = tasks

    @property
    def is_possible(self) -> bool:
        """True if there is a store, and the producer can write a message as bytes."""
        producer = self._state.producer
        return (
            self._context.parked is not None
            and producer is not None
            and type(producer).dump_event is not SharedStreamProducer.dump_event
        )

    def submit(
        self,
        in_flight: LaneMessageInFlight,
        error: Exception,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Park a message.

        Args:
            error: The reason why the message is parked. It is stored with the message.
            on_done: Called once. None: the message is parked or dead-lettered, or need not be parked. An error: the
                lane must wait at the message.
        """
        producer = self._state.producer
        assert producer is not None
        backlog, fence = in_flight.backlog, in_flight.fence
        try:
            data = dump_event(producer, in_flight.event)
        except Exception as raised:
            on_done(raised)
            return
        if data is None:
            on_done(None)
            return
        what = SetAside(
            backlog.stored_as,
            self._key_of(producer, in_flight),
            data,
            backlog.failures,
            error_text(error),
            traceback_text(error),
            self._context.now(),
            was_stored=isinstance(in_flight.message, QueueMessage)
            and in_flight.message.id is not None,
        )

        def on_answer(refusal: Exception | None) -> None:
            if (
                isinstance(refusal, ParkedFull)
                and not self._state.is_ending
                and self._may_dead_letter(producer)
            ):
                self._tasks.start_soon(self._dead_letter, producer, in_flight, error, on_done)
                return
            if refusal is None:
                in_flight.is_parked = True
                self._warn("a message was parked", backlog, in_flight, error)
            on_done(refusal)

        self._state.submit_parked(ParkedChange(fence, self._watcher.watcher_id, what, on_answer))

    def submit_change(
        self,
        backlog: Backlog,
        what: Passed | Failed,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        """Record in the store that messages of a queue's backlog have passed or failed."""
        change = ParkedChange(backlog.fence, self._watcher.watcher_id, what, on_done)
        self._state.submit_parked(change)

    def _key_of(self, producer: SharedStreamProducer, in_flight: LaneMessageInFlight) -> str:
        """Return the message's idempotency key, or its position if the producer has no key or raises.

        The producer's error must not prevent the parking. The error may even be the reason why the message failed:
        every event that derives from the message needs the key.
        """
        key: str | None = None
        try:
            with plugin_code(f"get_idempotency_key() of {type(producer).__qualname__}"):
                key = in_flight.key
        except Exception as raised:
            self._warn("the key of a message is unknown", in_flight.backlog, in_flight, raised)
        if isinstance(key, str) and key:
            return key
        backlog, position = in_flight.backlog, in_flight.message.position
        if backlog.stored_lane is None:
            return f"{backlog.stored_as}@{position}"
        # A queue's messages are numbered, and each group of the stream begins to count again. The time makes the key
        # unique.
        return f"{backlog.stored_as}@{self._context.now().isoformat()}/{position[1]}"

    def _may_dead_letter(self, producer: SharedStreamProducer) -> bool:
        return (
            self._context.parked_at_bound == "dead_letter"
            and type(producer).dead_letter is not SharedStreamProducer.dead_letter
        )

    async def _dead_letter(
        self,
        producer: SharedStreamProducer,
        in_flight: LaneMessageInFlight,
        error: Exception,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        if not self._state.may_act:
            on_done(LeaseLost("the stream is no longer owned by this instance"))
            return
        try:
            with plugin_code(f"dead_letter() of {type(producer).__qualname__}"):
                await producer.dead_letter(in_flight.event, f"{self._name}: {error_text(error)}")
        except Exception as raised:
            on_done(raised)
            return
        self._warn("a message was dead-lettered", in_flight.backlog, in_flight, error)
        on_done(None)

    def _warn(
        self, what: str, backlog: Backlog, in_flight: LaneMessageInFlight, error: Exception
    ) -> None:
        _log.warning(
            what,
            watcher=self._name,
            lane=backlog.stored_as,
            position=in_flight.message.position,
            failures=backlog.failures,
            error=error_text(error),
        )
