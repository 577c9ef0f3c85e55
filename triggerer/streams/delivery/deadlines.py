"""The ack timeout, which limits three waits: for a filter, for the store's answer, and for an advance of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triggerer.errors import AckTimeout, BrokerUnavailable
from triggerer.streams.delivery.derived_event import DerivedEvent
from triggerer.streams.delivery.group_state import GroupState
from triggerer.streams.delivery.pump import Pump
from triggerer.streams.delivery.subscriber import Subscriber
from triggerer.streams.delivery.subscribers import Subscribers


class Deadlines:
    """Fails each subscriber that has not resolved an event in time. On the fast path no event needs to be resolved.

    The task sleeps until the oldest unresolved event is due. Broadcasts need not wake the task, because later events
    are due later. Waking up costs O(subscribers), for any number of outstanding events.
    """

    def __init__(self, state: GroupState, subscribers: Subscribers, pump: Pump) -> None:
        self._state = state
        self._subscribers = subscribers
        self._timeout = state.settings.ack_timeout
        self._advances = _Advances(pump, self._timeout)

    async def run(self) -> None:
        """Fail every subscriber that has not resolved an event within the ack timeout after its broadcast.

        The ack timeout also limits each advance, from the moment when this task first sees the
        advance. If a blocked event loop wakes this task late, the task waits for as long again
        before it fails anything.

        Raises:
            BrokerUnavailable: An advance has not returned in time.
        """
        if not self._state.is_acknowledged:
            return
        clock = self._state.clock
        while True:
            now = clock.monotonic()
            oldest = min(self._oldest(now), self._advances.mark_awaited(now))
            due = max(oldest + self._timeout, now)
            await clock.sleep_until(due)
            woken = clock.monotonic()
            await clock.sleep_until(woken + (woken - due))
            self._fail_overdue(woken)
            if self._advances.has_overdue(woken):
                raise self._not_advanced()

    def _oldest(self, now: float) -> float:
        """Return the time at which the oldest unresolved event was broadcast, or `now` if there is none."""
        ledger, subscribers = self._state.ledger, self._subscribers
        oldest = now
        for subscriber in subscribers:
            if subscriber.done < ledger.next_seq:
                oldest = min(oldest, ledger.entry(subscriber.done).broadcast_at)
        for subscriber in (*subscribers, *subscribers.departed):
            pending = subscriber.oldest_pending
            if pending is not None:
                oldest = min(oldest, pending.broadcast_at)
        return oldest

    def _fail_overdue(self, at: float) -> None:
        """Fail every subscriber with an unresolved event whose timeout was over at `at`.

        The timeout is added to the time of the broadcast, as in `run`. It is not subtracted from `at`, because rounding
        could then make an overdue event seem not due.
        """
        ledger, subscribers = self._state.ledger, self._subscribers
        for subscriber in list(subscribers):
            if subscriber.done < ledger.next_seq:
                entry = ledger.entry(subscriber.done)
                if entry.broadcast_at + self._timeout <= at:
                    subscribers.fail(subscriber, self._not_resolved(subscriber))
        for subscriber in [*subscribers, *subscribers.departed]:
            while (derived := subscriber.oldest_pending) is not None:
                if derived.broadcast_at + self._timeout > at:
                    break
                self._abandon(subscriber, derived)
        self._state.progress.signal()

    def _abandon(self, subscriber: Subscriber, derived: DerivedEvent) -> None:
        error = AckTimeout(
            f"The store did not confirm an event of {subscriber.name} on the shared stream {self._state.name}"
            f" within {self._timeout:g} s",
            hint="see whether the database answers",
        )
        derived.abandon(error)
        self._subscribers.fail(subscriber, error)

    def _not_advanced(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"advance() of the shared stream {self._state.name} did not return within {self._timeout:g} s",
            hint="see whether the broker answers; raise shared_stream_ack_timeout if an advance may take so long",
        )

    def _not_resolved(self, subscriber: Subscriber) -> AckTimeout:
        return AckTimeout(
            f"{subscriber.name} did not resolve an event of the shared stream {self._state.name} within"
            f" {self._timeout:g} s of its broadcast",
            hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if a message may take so long",
        )


class _Advances:
    """Remembers when the deadlines' task first saw each awaited advance.

    The pump does not record when an advance begins, because that would cost time for each event.
    """

    def __init__(self, pump: Pump, timeout: float) -> None:
        self._pump = pump
        self._timeout = timeout
        # Maps the `id` of an advance's batch to the batch, and the time when it was first seen. Because the dictionary
        # refers to the batch, Python does not reuse the `id`.
        self._first_seen: dict[int, tuple[Sequence[Any], float]] = {}

    def mark_awaited(self, now: float) -> float:
        """Record the awaited advances. Return when the oldest was first seen, or `now` if there is none."""
        awaited = self._pump.awaited
        self._first_seen = {
            id(batch): self._first_seen.get(id(batch), (batch, now)) for batch in awaited
        }
        return min((since for _, since in self._first_seen.values()), default=now)

    def has_overdue(self, at: float) -> bool:
        """Return whether an advance whose timeout was over at `at` is still awaited."""
        awaited = {id(batch) for batch in self._pump.awaited}
        return any(
            since + self._timeout <= at and batch in awaited
            for batch, (_, since) in self._first_seen.items()
        )
