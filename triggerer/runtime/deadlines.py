"""Overdue subscribers, overdue confirmations, overdue advances."""

from __future__ import annotations

from collections.abc import Sequence

from triggerer.abc import AdvanceItem
from triggerer.errors import AckTimeout, BrokerUnavailable
from triggerer.runtime.pump import Pump
from triggerer.runtime.state import GroupState
from triggerer.runtime.subscriber import DerivedEvent, Subscriber
from triggerer.runtime.subscribers import Subscribers


class Deadlines:
    """Fails whoever owes an answer for longer than the ack timeout. Nobody owes one on the fast path.

    Sleeps until the oldest unresolved event falls due. No broadcast needs to wake it: whatever is broadcast while it
    sleeps falls due later than one timeout from now. Each look costs O(subscribers), whatever is outstanding.
    """

    def __init__(self, state: GroupState, subscribers: Subscribers, pump: Pump) -> None:
        self._state = state
        self._subscribers = subscribers
        self._advances = _Advances(pump)
        self._timeout = state.settings.ack_timeout

    async def run(self) -> None:
        """Fail every subscriber that has not resolved an event within the ack timeout after its broadcast.

        The same time is given to an advance, from the first look that meets it. One that takes longer ends the group:
        otherwise its lane would stand still, and nothing show what holds it up. What holds up the event loop when
        something falls due is nobody's fault: they get that time once more.

        Raises:
            BrokerUnavailable: An advance has not returned in time.
        """
        if not self._state.is_acknowledged:
            return
        clock = self._state.clock
        while True:
            now = clock.monotonic()
            oldest = min(self._oldest(now), self._advances.look(now))
            due = max(oldest + self._timeout, now)
            await clock.sleep_until(due)
            woken = clock.monotonic()
            limit = woken - self._timeout
            await clock.sleep_until(woken + (woken - due))
            self._fail_overdue(limit)
            if self._advances.has_overdue(limit):
                raise self._not_advanced()

    def _oldest(self, now: float) -> float:
        """When the oldest event was broadcast that somebody has not resolved; `now` where there is none."""
        ledger, subscribers = self._state.ledger, self._subscribers
        oldest = now
        for subscriber in subscribers:
            if subscriber.done < ledger.head:
                oldest = min(oldest, ledger.entry(subscriber.done).broadcast_at)
        for subscriber in (*subscribers, *subscribers.departed):
            pending = subscriber.oldest_pending
            if pending is not None:
                oldest = min(oldest, pending.overdue_since)
        return oldest

    def _fail_overdue(self, limit: float) -> None:
        """Fail whoever owes an answer for an event that was broadcast at `limit` or earlier."""
        ledger, subscribers = self._state.ledger, self._subscribers
        for subscriber in list(subscribers):
            if subscriber.done < ledger.head:
                entry = ledger.entry(subscriber.done)
                if entry.broadcast_at <= limit:
                    subscribers.fail(subscriber, self._not_resolved(subscriber))
        for subscriber in [*subscribers, *subscribers.departed]:
            while (derived := subscriber.oldest_pending) is not None:
                if derived.overdue_since > limit:
                    break
                self._abandon(subscriber, derived)
        self._state.progress.note()

    def _abandon(self, subscriber: Subscriber, derived: DerivedEvent) -> None:
        error = AckTimeout(
            f"The store did not confirm an event of {subscriber.name} on the shared stream {self._state.key!r}"
            f" within {self._timeout:g} s",
            hint="see whether the database answers",
        )
        derived.abandon(error)
        self._subscribers.fail(subscriber, error)

    def _not_advanced(self) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"advance() of the shared stream {self._state.key!r} did not return within {self._timeout:g} s",
            hint="see whether the broker answers; raise shared_stream_ack_timeout if an advance may take so long",
        )

    def _not_resolved(self, subscriber: Subscriber) -> AckTimeout:
        return AckTimeout(
            f"{subscriber.name} did not resolve an event of the shared stream {self._state.key!r} within"
            f" {self._timeout:g} s of its broadcast",
            hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if that is its nature",
        )


class _Advances:
    """Since when each advance is known to be awaited. Told by looking: to note when each begins costs every event."""

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        # With the batch, so that no other one gets its identity.
        self._met: dict[int, tuple[Sequence[AdvanceItem], float]] = {}

    def look(self, now: float) -> float:
        """Note which are awaited; return when the oldest of them was met, or `now`."""
        awaited = self._pump.awaited
        self._met = {id(batch): self._met.get(id(batch), (batch, now)) for batch in awaited}
        return min((since for _, since in self._met.values()), default=now)

    def has_overdue(self, limit: float) -> bool:
        """Whether one is still awaited that was met at `limit` or earlier."""
        awaited = {id(batch) for batch in self._pump.awaited}
        return any(since <= limit and batch in awaited for batch, (_, since) in self._met.items())
