"""Overdue subscribers and overdue confirmations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triggerer.errors import AckTimeout
from triggerer.runtime.subscriber import DerivedEvent, Subscriber

if TYPE_CHECKING:
    from triggerer.runtime.group import Group


async def watch_deadlines(group: Group) -> None:
    """Fail every subscriber that has not resolved an event within the ack timeout after its broadcast.

    Sleeps until the oldest unresolved event falls due. No broadcast needs to wake it: whatever is broadcast while it
    sleeps falls due later than one timeout from now. Each look costs O(subscribers), whatever is outstanding.
    """
    if not group.is_acknowledged:
        return
    timeout = group.settings.ack_timeout
    while True:
        now = group.clock.monotonic()
        await group.clock.sleep_until(min(now, _oldest(group, now)) + timeout)
        fail_overdue(group, group.clock.monotonic() - timeout)


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


def _not_resolved(group: Group, subscriber: Subscriber) -> AckTimeout:
    return AckTimeout(
        f"{subscriber.name} did not resolve an event of the shared stream {group.key!r} within"
        f" {group.settings.ack_timeout:g} s of its broadcast",
        hint="its filter is stuck or too slow; raise shared_stream_ack_timeout if that is its nature",
    )
