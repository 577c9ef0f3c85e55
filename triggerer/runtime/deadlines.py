"""Overdue subscribers, overdue confirmations, overdue advances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triggerer.abc import AdvanceItem
from triggerer.errors import AckTimeout, BrokerUnavailable
from triggerer.runtime.subscriber import DerivedEvent, Subscriber

if TYPE_CHECKING:
    from triggerer.runtime.group import Group


async def watch_deadlines(group: Group) -> None:
    """Fail every subscriber that has not resolved an event within the ack timeout after its broadcast.

    The same time is given to an advance, from the first look that meets it. One that takes longer ends the group:
    otherwise its lane would stand still, and nothing show what holds it up. What holds up the event loop when
    something falls due is nobody's fault: they get that time once more.

    Sleeps until the oldest unresolved event falls due. No broadcast needs to wake it: whatever is broadcast while it
    sleeps falls due later than one timeout from now. Each look costs O(subscribers), whatever is outstanding.

    Raises:
        BrokerUnavailable: An advance has not returned in time.
    """
    if not group.is_acknowledged:
        return
    timeout = group.settings.ack_timeout
    advances = _Advances(group)
    while True:
        now = group.clock.monotonic()
        oldest = min(_oldest(group, now), advances.look(now))
        due = max(oldest + timeout, now)
        await group.clock.sleep_until(due)
        woken = group.clock.monotonic()
        limit = woken - timeout
        await group.clock.sleep_until(woken + (woken - due))
        fail_overdue(group, limit)
        if advances.has_overdue(limit):
            error = _not_advanced(group)
            # What cannot be cancelled, in a thread say, keeps the group from ending, not its failure from being seen.
            group.announce_end(error)
            raise error


class _Advances:
    """Since when each advance is known to be awaited. Told by looking: to note when each begins costs every event."""

    def __init__(self, group: Group) -> None:
        self._group = group
        # With the batch, so that no other one gets its identity.
        self._met: dict[int, tuple[Sequence[AdvanceItem], float]] = {}

    def look(self, now: float) -> float:
        """Note which are awaited; return when the oldest of them was met, or `now`."""
        awaited = self._group.pump.awaited
        self._met = {id(batch): self._met.get(id(batch), (batch, now)) for batch in awaited}
        return min((since for _, since in self._met.values()), default=now)

    def has_overdue(self, limit: float) -> bool:
        """Whether one is still awaited that was met at `limit` or earlier."""
        awaited = {id(batch) for batch in self._group.pump.awaited}
        return any(since <= limit and batch in awaited for batch, (_, since) in self._met.items())


def _oldest(group: Group, now: float) -> float:
    """When the oldest event was broadcast that somebody has not resolved; `now` where there is none."""
    oldest = now
    for subscriber in group.subscribers:
        if subscriber.done < group.ledger.head:
            oldest = min(oldest, group.ledger.entry(subscriber.done).broadcast_at)
    for subscriber in (*group.subscribers, *group.departed):
        unsettled = subscriber.oldest_unsettled
        if unsettled is not None:
            oldest = min(oldest, unsettled.overdue_since)
    return oldest


def fail_overdue(group: Group, limit: float) -> None:
    """Fail whoever owes an answer for an event that was broadcast at `limit` or earlier."""
    for subscriber in list(group.subscribers):
        if subscriber.done < group.ledger.head:
            entry = group.ledger.entry(subscriber.done)
            if entry.broadcast_at <= limit:
                group.fail(subscriber, _not_resolved(group, subscriber))
    for subscriber in [*group.subscribers, *group.departed]:
        while (derived := subscriber.oldest_unsettled) is not None:
            if derived.overdue_since > limit:
                break
            _abandon(group, subscriber, derived)
    group.note_progress()


def _abandon(group: Group, subscriber: Subscriber, derived: DerivedEvent) -> None:
    error = AckTimeout(
        f"The store did not confirm an event of {subscriber.name} on the shared stream {group.key!r}"
        f" within {group.settings.ack_timeout:g} s",
        hint="see whether the database answers",
    )
    derived.abandon(error)
    group.fail(subscriber, error)


def _not_advanced(group: Group) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"advance() of the shared stream {group.key!r} did not return within {group.settings.ack_timeout:g} s",
        hint="see whether the broker answers; raise shared_stream_ack_timeout if an advance may take so long",
    )


def _not_resolved(group: Group, subscriber: Subscriber) -> AckTimeout:
    return AckTimeout(
        f"{subscriber.name} did not resolve an event of the shared stream {group.key!r} within"
        f" {group.settings.ack_timeout:g} s of its broadcast",
        hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if that is its nature",
    )
