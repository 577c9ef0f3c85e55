"""What becomes of the messages that a filter is given while it catches up: passed, failed, or set aside."""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog

from triggerer.domain.watchers.lane_positions import Position
from triggerer.domain.watchers.parked import Failed, Passed
from triggerer.errors import LeaseLost, PluginError
from triggerer.streams.catchup.backlogs.backlog import Blocked, Lag
from triggerer.streams.catchup.backlogs.stored_lane import KeptInLane
from triggerer.streams.catchup.processing.in_flight import (
    Taken,
    TakenAgain,
    TakenFromLane,
    TakenMessages,
    Trial,
)
from triggerer.streams.catchup.processing.parking import SettingAside
from triggerer.streams.catchup.processing.probes import Trials
from triggerer.streams.catchup.reading.backlog_reader import MissedMessages
from triggerer.streams.catchup.reading.queue_reader import QueueMessage
from triggerer.streams.catchup.reading.stored_messages import KeptMessages
from triggerer.streams.context import RuntimeContext
from triggerer.streams.delivery.group_state import GroupState

_log = structlog.get_logger(__name__)


def _ignore(_: Exception | None) -> None:
    pass


class Settlement:
    """Settles the messages of one watcher. Synchronous.

    Args:
        name: The watcher's, for errors.
        on_failure: Called with what is to be shown of a failure.
        on_success: Called when a message of a lane has passed.
    """

    def __init__(
        self,
        name: str,
        state: GroupState,
        context: RuntimeContext,
        taken: TakenMessages,
        missed: MissedMessages,
        trials: Trials,
        setting_aside: SettingAside,
        kept: KeptMessages | None,
        on_failure: Callable[[Exception], None],
        on_success: Callable[[], None],
    ) -> None:
        self._name = name
        self._state = state
        self._context = context
        self._taken = taken
        self._missed = missed
        self._trials = trials
        self._setting_aside = setting_aside
        self._kept = kept
        self._on_failure = on_failure
        self._on_success = on_success
        self._going_on: Lag | None = None
        """The lane of a log whose message has passed last, if nothing has failed since."""

    def is_trial_due(self, lag: Lag) -> bool:
        """Whether another message is to be tried, since the lane's own has failed too often."""
        return self._setting_aside.is_possible and self._trials.is_due(lag)

    # What passes

    def resolve(self, taken: Taken) -> bool:
        """The filter has moved past a message; False if its lane is not to be read on from there."""
        if not isinstance(taken, TakenFromLane):
            return self._resolve_alone(taken)
        if taken.is_dropped:
            return False
        lag = taken.lag
        is_going_on = lag is self._going_on
        if is_going_on and not (taken.derived or taken.is_rejected or lag.is_gone):
            # Nearly always: nothing waits for it.
            self._taken.pass_by(taken)
            return True
        if taken.is_rejected and not self._reject(taken):
            return False
        taken.unresolved -= 1
        if not is_going_on:
            # After a message of another lane, or after a failure.
            self._on_success()
            self._missed.note_success(lag)
        self._taken.add(taken)
        goes_on = self._pass(taken)
        if not is_going_on and goes_on and lag.kept is None:
            self._going_on = lag
        return goes_on

    def _resolve_alone(self, taken: Trial | TakenAgain) -> bool:
        """The same of one that is given for itself."""
        if taken.is_dropped:
            return False
        if isinstance(taken, Trial):
            is_evidence = taken.derived > 0 or taken.is_rejected
            self._trials.note_passed(taken.lag, is_evidence=is_evidence)
            return False
        if taken.is_rejected and not self._reject(taken):
            return False
        taken.unresolved -= 1
        if not taken.unresolved:
            self._settle(taken)
        return True

    def _pass(self, taken: TakenFromLane) -> bool:
        """The lane goes on behind a message; False if there is no more to be read of it now."""
        lag = taken.lag
        lag.read_to = taken.message.end
        if lag.failures:
            lag.failures = 0
            self._trials.forget(lag)
            if lag.kept is not None:
                lag.kept.failed_with = None
        if not taken.unresolved:
            self._settle(taken)
        if lag.is_gone:
            return False
        if self._is_blocked_at(taken):
            # What follows it waits for the answer, or each attempt would derive all of it again.
            self._missed.hold(lag)
            return False
        return True

    def pass_over(self, lag: Lag, position: Position) -> None:
        """No message lies between where a lane of a log was read to and this position."""
        before = lag.gap
        start = before[0] if before is not None and before[1] == lag.read_to else lag.read_to
        lag.gap, lag.read_to = (start, position), position
        if lag.failures:
            # Of a message that was deleted.
            lag.failures = 0
            self._trials.forget(lag)
        self._move(lag)

    def note_failure(self) -> None:
        """Something has failed, and is shown until a message passes."""
        self._going_on = None

    def note_stored(self, taken: Taken, error: Exception | None) -> None:
        """The store has answered for an event that derives from a message."""
        taken.unresolved -= 1
        if taken.is_dropped:
            return
        if error is None:
            if not taken.unresolved:
                self._settle(taken)
        elif not isinstance(error, LeaseLost):
            self._on_failure(error)
            self._refuse(taken, error)

    def _settle(self, taken: Taken) -> None:
        """A message waits for nothing any more."""
        if isinstance(taken, TakenFromLane):
            if self._is_blocked_at(taken):
                taken.lag.blocked = None
                self._missed.resume(taken.lag)
            self._move(taken.lag)
        elif isinstance(taken, TakenAgain):
            assert self._kept is not None
            self._kept.note_passed(taken)

    def _move(self, lag: Lag) -> None:
        """Move the position past what is dealt with."""
        has_derived = self._taken.move(lag)
        if lag.kept is not None:
            if lag.kept.passed:
                self._drop_passed(lag, lag.kept)
        elif has_derived:
            self._state.lags.move(lag)
        if lag.is_live:
            self._state.lags.note_settled(lag)

    def _drop_passed(self, lag: Lag, kept: KeptInLane) -> None:
        """Delete the rows of what is dealt with."""
        keys, kept.passed = tuple(kept.passed), []

        def note(_: Exception | None) -> None:
            # Where it was refused the rows stay, and keys absorb what they bring once more.
            kept.note_gone(keys)
            self._state.end_if_advanced(lag)

        self._setting_aside.submit_change(lag, Passed(keys), note)

    # What fails

    def fail(self, taken: Taken, error: Exception) -> None:
        """The filter has failed with this message open."""
        if isinstance(taken, Trial):
            self._trials.note_failed(taken.lag)
        elif isinstance(taken, TakenAgain):
            assert self._kept is not None
            if not taken.is_dropped:
                self._kept.note_failed(taken, error)
        elif not taken.is_stale:
            lag = taken.lag
            self._count_failure(lag, taken)
            self._missed.note_failure()
            if lag.kept is not None and taken.key is not None:
                self._setting_aside.submit_change(lag, Failed(taken.key, lag.failures), _ignore)
            if self._trials.blames_message(lag):
                taken.unresolved -= 1
                self._taken.add(taken)
                # Until that is durable: after a crash it is given again, and nothing behind it was.
                self._missed.hold(lag)
                self._set_aside(taken, error, is_waited_for=True)
                return
            self._rewind(taken)
            if lag.kept is not None:
                lag.kept.failed_with = taken.key
            if not self.is_trial_due(lag):
                is_patient = lag.failures >= self._context.settings.max_deliveries
                self._missed.postpone(lag, is_patient=is_patient)
                self._trials.look_again(lag)

    def read_again(self, taken: Taken) -> None:
        """It could not even be noted that the filter has failed with this message."""
        if isinstance(taken, TakenFromLane) and not taken.is_stale:
            self._rewind(taken)
            self._missed.postpone(taken.lag)

    def _count_failure(self, lag: Lag, taken: TakenFromLane) -> None:
        message = taken.message
        if (
            lag.kept is not None
            and isinstance(message, QueueMessage)
            and lag.kept.failed_with not in (None, taken.key)
        ):
            # Somebody has discarded the message that was counted: this one is blamed for nothing yet.
            lag.failures = message.failures
            self._trials.forget(lag)
        lag.failures += 1

    def _reject(self, taken: Taken) -> bool:
        because = taken.rejected_because
        error = PluginError(
            f"{self._name} rejected a message while it caught up"
            + ("" if because is None else f": {because}")
        )
        if self._setting_aside.is_possible:
            return self._refuse(taken, error)
        # Without its key, which the producer may not be able to tell.
        _log.warning(
            "a message was rejected by a watcher that catches up, and cannot be set aside",
            watcher=self._name,
            position=taken.message.position if isinstance(taken, TakenFromLane) else None,
        )
        return True

    def _refuse(self, taken: Taken, error: Exception) -> bool:
        """A repeat would bring the same: the store has refused an event of the message, or the filter rejected it.

        Returns:
            Whether it is settled once the filter has moved past it.
        """
        if isinstance(taken, TakenAgain):
            self.fail(taken, error)
        elif isinstance(taken, TakenFromLane) and not taken.lag.is_gone:
            return self._set_aside(taken, error)
        return False

    def _set_aside(
        self, taken: TakenFromLane, error: Exception, *, is_waited_for: bool = False
    ) -> bool:
        """Set a message aside while its lane goes on; False if that cannot be done: then the lane stands at it.

        Args:
            is_waited_for: Whether the lane goes on only then.
        """
        if taken.is_parked:
            return not taken.is_dropped
        taken.is_parked = True
        taken.unresolved += 1

        def note(refusal: Exception | None) -> None:
            taken.unresolved -= 1
            if is_waited_for:
                self._missed.resume(taken.lag)
            if taken.is_dropped:
                return
            if refusal is None:
                if is_waited_for:
                    self._missed.note_success(taken.lag)
                    self._pass(taken)
                elif not taken.unresolved:
                    self._settle(taken)
            elif not isinstance(refusal, LeaseLost):
                self._on_failure(refusal)
                if not is_waited_for:
                    # Its filter has taken it: what was counted is of a message behind it.
                    taken.lag.failures = 0
                    self._trials.forget(taken.lag)
                self._rewind(taken)
                self._block(taken)

        if self._setting_aside.is_possible:
            self._setting_aside.submit(taken, error, note)
        else:
            note(error)
        return not taken.is_dropped

    def _is_blocked_at(self, taken: TakenFromLane) -> bool:
        blocked = taken.lag.blocked
        return blocked is not None and blocked.position == taken.message.position

    def _block(self, taken: TakenFromLane) -> None:
        """There is no room for a message. The filter takes it each time, so its lane has no growing delay for it."""
        lag, position = taken.lag, taken.message.position
        blocked = lag.blocked
        if blocked is None or blocked.position != position:
            blocked = lag.blocked = Blocked(position, self._context.restart_backoff())
        if self._context.restarts:
            delay = blocked.backoff.next_delay()
            blocked.until = self._context.clock.monotonic() + delay
            self._missed.delay(lag, delay)
        else:
            blocked.until = math.inf
            self._missed.postpone(lag)

    def _rewind(self, taken: TakenFromLane) -> None:
        """The lane is read again from this message on."""
        lag = taken.lag
        self._taken.drop_from(taken)
        if lag.is_gone:
            return
        self._state.lags.leave_live(lag)
        if lag.kept is not None:
            lag.kept.read_again()
        lag.read_to = taken.message.position
        self._move(lag)
        self._state.store_position(lag)
        # It may have been live, and nobody reads it again then.
        self._state.lags.note_change(lag)
