"""While a watcher catches up, decides for each message whether the message has passed, is retried, or is parked."""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog

from triggerer.domain.watchers.lane_positions import Position
from triggerer.domain.watchers.parked import Failed, Passed
from triggerer.errors import LeaseLost, PluginError
from triggerer.streams.catchup.backlogs.backlog import Backlog, Blocked
from triggerer.streams.catchup.backlogs.stored_lane import StoredLane
from triggerer.streams.catchup.processing.in_flight import (
    LaneMessageInFlight,
    MessageInFlight,
    MessagesInFlight,
    Probe,
    ReplayedMessageInFlight,
)
from triggerer.streams.catchup.processing.parking import Parking
from triggerer.streams.catchup.processing.probes import Probes
from triggerer.streams.catchup.reading.backlog_reader import BacklogReader
from triggerer.streams.catchup.reading.queue_reader import QueueMessage
from triggerer.streams.catchup.reading.replayed_messages import ReplayedMessages
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState

_log = structlog.get_logger(__name__)


def _ignore(_: Exception | None) -> None:
    pass


class Outcomes:
    """Handles the outcomes of one watcher's messages. Synchronous.

    Args:
        name: The watcher's name, for errors.
        on_failure: Called with each error that users should see.
        on_success: Called when the filter has passed a message. In a log, called only for the first of consecutive
            messages of one lane.
    """

    def __init__(
        self,
        name: str,
        state: GroupState,
        context: RuntimeContext,
        in_flight: MessagesInFlight,
        backlog_reader: BacklogReader,
        probes: Probes,
        parking: Parking,
        replays: ReplayedMessages | None,
        on_failure: Callable[[Exception], None],
        on_success: Callable[[], None],
    ) -> None:
        self._name = name
        self._state = state
        self._context = context
        self._in_flight = in_flight
        self._reader = backlog_reader
        self._probes = probes
        self._parking = parking
        self._replays = replays
        self._on_failure = on_failure
        self._on_success = on_success
        self._passing_lane: Backlog | None = None
        """For a log: the lane whose message passed last. In `resolve`, the lane's next message takes a shorter path.

        None after a failure.
        """

    def is_probe_due(self, backlog: Backlog) -> bool:
        """Return whether another message must be tried as a probe: the lane's first message has failed too often."""
        return self._parking.is_possible and self._probes.is_due(backlog)

    # Messages that pass

    def resolve(self, in_flight: MessageInFlight) -> bool:
        """Resolve a message that the filter has moved past. Return False if the reading of its lane must stop now."""
        if not isinstance(in_flight, LaneMessageInFlight):
            return self._resolve_alone(in_flight)
        if in_flight.is_dropped:
            return False
        backlog = in_flight.backlog
        was_passing = backlog is self._passing_lane
        if was_passing and not (in_flight.derived or in_flight.is_rejected or backlog.is_gone):
            # This is the usual case, and must be fast: the filter has skipped the message.
            self._in_flight.pass_by(in_flight)
            return True
        if in_flight.is_rejected and not self._reject(in_flight):
            return False
        in_flight.unresolved -= 1
        if not was_passing:
            # In a log, this is the lane's first message to pass after a failure, or after another lane had its turn.
            # In a queue, this is any message.
            self._on_success()
            self._reader.record_success(backlog)
        self._in_flight.add(in_flight)
        goes_on = self._pass(in_flight)
        if not was_passing and goes_on and backlog.stored_lane is None:
            self._passing_lane = backlog
        return goes_on

    def _resolve_alone(self, in_flight: Probe | ReplayedMessageInFlight) -> bool:
        """Resolve a probe or a replayed message."""
        if in_flight.is_dropped:
            return False
        if isinstance(in_flight, Probe):
            is_evidence = in_flight.derived > 0 or in_flight.is_rejected
            self._probes.mark_passed(in_flight.backlog, is_evidence=is_evidence)
            return False
        if in_flight.is_rejected and not self._reject(in_flight):
            return False
        in_flight.unresolved -= 1
        if not in_flight.unresolved:
            self._settle(in_flight)
        return True

    def _pass(self, in_flight: LaneMessageInFlight) -> bool:
        """Move the cursor past the message. Return False if the reading of its lane must stop now."""
        backlog = in_flight.backlog
        backlog.cursor = in_flight.message.end
        if backlog.failures:
            backlog.failures = 0
            self._probes.forget(backlog)
            if backlog.stored_lane is not None:
                backlog.stored_lane.failed_with = None
        if not in_flight.unresolved:
            self._settle(in_flight)
        if backlog.is_gone:
            return False
        if self._is_blocked_at(in_flight):
            # The store refused this message's events at the last attempt. Wait for the store's answer before reading
            # on: after another refusal, the lane would return to this message.
            self._reader.hold(backlog)
            return False
        return True

    def pass_over(self, backlog: Backlog, position: Position) -> None:
        """Move the cursor to this position of a log, because the log has no message in between."""
        before = backlog.gap
        start = before[0] if before is not None and before[1] == backlog.cursor else backlog.cursor
        backlog.gap, backlog.cursor = (start, position), position
        if backlog.failures:
            # The message that failed is no longer in the log, for example because its retention has ended.
            backlog.failures = 0
            self._probes.forget(backlog)
        self._move(backlog)

    def record_failure(self) -> None:
        """Record that users see a failure, so that the next message that passes calls `on_success`."""
        self._passing_lane = None

    def mark_stored(self, in_flight: MessageInFlight, error: Exception | None) -> None:
        """Handle the store's answer for an event of the message."""
        in_flight.unresolved -= 1
        if in_flight.is_dropped:
            return
        if error is None:
            if not in_flight.unresolved:
                self._settle(in_flight)
        elif not isinstance(error, LeaseLost):
            self._on_failure(error)
            self._refuse(in_flight, error)

    def _settle(self, in_flight: MessageInFlight) -> None:
        """Handle a message whose events are all durable."""
        if isinstance(in_flight, LaneMessageInFlight):
            if self._is_blocked_at(in_flight):
                in_flight.backlog.blocked = None
                self._reader.resume(in_flight.backlog)
            self._move(in_flight.backlog)
        elif isinstance(in_flight, ReplayedMessageInFlight):
            assert self._replays is not None
            self._replays.mark_passed(in_flight)

    def _move(self, backlog: Backlog) -> None:
        """Move the position past durable messages."""
        has_derived = self._in_flight.move(backlog)
        if backlog.stored_lane is not None:
            if backlog.stored_lane.passed:
                self._drop_passed(backlog, backlog.stored_lane)
        elif has_derived:
            self._state.backlogs.writes.move(backlog)
        if backlog.is_caught_up:
            self._state.backlogs.mark_settled(backlog)

    def _drop_passed(self, backlog: Backlog, stored: StoredLane) -> None:
        """Delete the rows of resolved messages."""
        keys, stored.passed = tuple(stored.passed), []

        def on_answer(_: Exception | None) -> None:
            # If the deletion was refused, the rows are read again. Idempotency keys prevent repeated events.
            stored.mark_gone(keys)
            self._state.end_if_advanced(backlog)

        self._parking.submit_change(backlog, Passed(keys), on_answer)

    # Messages that fail

    def fail(self, in_flight: MessageInFlight, error: Exception) -> None:
        """Handle a message with which the filter has failed."""
        if isinstance(in_flight, Probe):
            self._probes.mark_failed(in_flight.backlog)
        elif isinstance(in_flight, ReplayedMessageInFlight):
            assert self._replays is not None
            if not in_flight.is_dropped:
                self._replays.mark_failed(in_flight, error)
        elif not in_flight.is_stale:
            backlog = in_flight.backlog
            self._count_failure(backlog, in_flight)
            self._reader.record_failure()
            if backlog.stored_lane is not None and in_flight.key is not None:
                self._parking.submit_change(
                    backlog, Failed(in_flight.key, backlog.failures), _ignore
                )
            if self._probes.blames_message(backlog):
                in_flight.unresolved -= 1
                self._in_flight.add(in_flight)
                # The lane waits until the message is parked. After a crash before that, the lane is read again from
                # this message.
                self._reader.hold(backlog)
                self._park(in_flight, error, is_waited_for=True)
                return
            self._rewind(in_flight)
            if backlog.stored_lane is not None:
                backlog.stored_lane.failed_with = in_flight.key
            if not self.is_probe_due(backlog):
                is_patient = backlog.failures >= self._context.settings.max_deliveries
                self._reader.postpone(backlog, is_patient=is_patient)
                self._probes.allow_more(backlog)

    def read_again(self, in_flight: MessageInFlight) -> None:
        """Read the message again, because its failure could not be recorded."""
        if isinstance(in_flight, LaneMessageInFlight) and not in_flight.is_stale:
            self._rewind(in_flight)
            self._reader.postpone(in_flight.backlog)

    def _count_failure(self, backlog: Backlog, in_flight: LaneMessageInFlight) -> None:
        message = in_flight.message
        if (
            backlog.stored_lane is not None
            and isinstance(message, QueueMessage)
            and backlog.stored_lane.failed_with not in (None, in_flight.key)
        ):
            # An operator has discarded the message whose failures were counted. This message has its own count.
            backlog.failures = message.failures
            self._probes.forget(backlog)
        backlog.failures += 1

    def _reject(self, in_flight: MessageInFlight) -> bool:
        because = in_flight.rejected_because
        error = PluginError(
            f"{self._name} rejected a message while it caught up"
            + ("" if because is None else f": {because}")
        )
        if self._parking.is_possible:
            return self._refuse(in_flight, error)
        # Do not log the message's key, because the producer may be unable to compute it.
        _log.warning(
            "a message was rejected by a watcher that catches up, and cannot be parked",
            watcher=self._name,
            position=in_flight.message.position
            if isinstance(in_flight, LaneMessageInFlight)
            else None,
        )
        return True

    def _refuse(self, in_flight: MessageInFlight, error: Exception) -> bool:
        """Park a message whose event the store refused, or that the filter rejected. Another attempt would not help.

        Returns:
            True if the caller must still resolve the message as passed.
        """
        if isinstance(in_flight, ReplayedMessageInFlight):
            self.fail(in_flight, error)
        elif isinstance(in_flight, LaneMessageInFlight) and not in_flight.backlog.is_gone:
            return self._park(in_flight, error)
        return False

    def _park(
        self, in_flight: LaneMessageInFlight, error: Exception, *, is_waited_for: bool = False
    ) -> bool:
        """Park a message, so that its lane continues. If the message cannot be parked, the lane waits at the message.

        Args:
            is_waited_for: True: the lane waits until the message is parked.
        Returns:
            False if the message is read again, for instance because it cannot be parked.
        """
        if in_flight.is_being_parked:
            return not in_flight.is_dropped
        in_flight.is_being_parked = True
        in_flight.unresolved += 1

        def on_answer(refusal: Exception | None) -> None:
            in_flight.unresolved -= 1
            if is_waited_for:
                self._reader.resume(in_flight.backlog)
            if in_flight.is_dropped:
                return
            if refusal is None:
                if is_waited_for:
                    self._reader.record_success(in_flight.backlog)
                    self._pass(in_flight)
                elif not in_flight.unresolved:
                    self._settle(in_flight)
            elif not isinstance(refusal, LeaseLost):
                self._on_failure(refusal)
                if not is_waited_for:
                    # The filter accepted this message, so the failure count belongs to a later one. Reset it.
                    in_flight.backlog.failures = 0
                    self._probes.forget(in_flight.backlog)
                self._rewind(in_flight)
                self._block(in_flight)

        if self._parking.is_possible:
            self._parking.submit(in_flight, error, on_answer)
        else:
            on_answer(error)
        return not in_flight.is_dropped

    def _is_blocked_at(self, in_flight: LaneMessageInFlight) -> bool:
        blocked = in_flight.backlog.blocked
        return blocked is not None and blocked.position == in_flight.message.position

    def _block(self, in_flight: LaneMessageInFlight) -> None:
        """Let the lane wait at a message that cannot be parked, and try the message again after a delay.

        The message has growing delays of its own. The lane's usual delays would not grow, because they are reset
        whenever the filter accepts the message.
        """
        backlog, position = in_flight.backlog, in_flight.message.position
        blocked = backlog.blocked
        if blocked is None or blocked.position != position:
            blocked = backlog.blocked = Blocked(position, self._context.restart_backoff())
        if self._context.restarts:
            delay = blocked.backoff.next_delay()
            blocked.until = self._context.clock.monotonic() + delay
            self._reader.delay(backlog, delay)
        else:
            blocked.until = math.inf
            self._reader.postpone(backlog)

    def _rewind(self, in_flight: LaneMessageInFlight) -> None:
        """Read the lane again from this message on."""
        backlog = in_flight.backlog
        self._in_flight.drop_from(in_flight)
        if backlog.is_gone:
            return
        self._state.backlogs.leave_live(backlog)
        if backlog.stored_lane is not None:
            backlog.stored_lane.read_again()
        backlog.cursor = in_flight.message.position
        self._move(backlog)
        self._state.store_position(backlog)
        # If the watcher was live in the lane, no task reads the lane now. This call starts a task.
        self._state.backlogs.record_change(backlog)
