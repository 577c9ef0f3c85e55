"""The queue of notifications: one row for each notification and target, until the target has accepted the notification.

A process claims a row by setting its `due_at` to a later time. If the process dies, the row is due again at that time.
So no notification is lost, but the target may get it twice.

While a row waits for a later time, the target's other rows wait too. So the target gets its messages in order, and a
target that fails is not tried for each message. See `TRIED_FIRST` for the exception.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from triggerer.domain.notifications import NotificationText
from triggerer.store.schema.models import Notification

MOST_WAITING: Final = 200
"""The most messages that wait for one target. If there are more, the oldest ones are dropped."""
OLDEST: Final = timedelta(days=1)
"""A message that could not be delivered for this long is dropped."""
TRIED_FIRST: Final = 6
"""After this number of attempts, a message is tried after the target's other messages.

Perhaps the target refuses only this one message. Without this limit, the target's other messages would wait until this
message is dropped, after `OLDEST`. With the limit, they wait for about five minutes: see the delays in
`triggerer.scheduler.notifying.outcomes`.
"""


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that this process may send now."""

    id: int
    target: str
    message: NotificationText
    attempts: int
    """The number of attempts to send the message, including the attempt that begins now."""


async def put(
    session: AsyncSession,
    targets: Collection[str],
    messages: Sequence[NotificationText],
    now: datetime,
) -> None:
    """Queue these messages for each of these targets."""
    for target in targets:
        for one in messages:
            session.add(
                Notification(
                    target=target,
                    title=one.title,
                    body=one.body,
                    severity=one.severity,
                    created_at=now,
                    due_at=now,
                )
            )
    await session.flush()


async def drop(session: AsyncSession, targets: Collection[str], now: datetime) -> dict[str, int]:
    """Delete messages that are older than `OLDEST` or beyond `MOST_WAITING`; return their number by target.

    Old messages are also deleted for targets that are no longer configured and therefore not in `targets`.
    """
    ids = select(Notification.id)
    doomed = set(await session.scalars(ids.where(Notification.created_at < now - OLDEST)))
    for target in targets:
        newest = ids.where(Notification.target == target).order_by(Notification.id.desc())
        doomed.update(await session.scalars(newest.offset(MOST_WAITING)))
    if not doomed:
        return {}
    gone = delete(Notification).where(Notification.id.in_(doomed)).returning(Notification.target)
    dropped: dict[str, int] = {}
    for target in await session.scalars(gone):
        dropped[target] = dropped.get(target, 0) + 1
    return dropped


async def claim(
    session: AsyncSession,
    targets: Collection[str],
    now: datetime,
    *,
    limit: int,
    lease: timedelta,
) -> list[QueuedMessage]:
    """Claim up to `limit` messages for each of these targets; empty if no message is due.

    A target receives its messages in order, the oldest first. So while one message waits for a later time, no other
    message of the target is due. A message that failed `TRIED_FIRST` times is an exception: it blocks no other message,
    and comes last.

    Args:
        lease: After this time the messages are due again, unless their outcome is stored.
    """
    other = aliased(Notification)
    claimed: list[QueuedMessage] = []
    for target in targets:
        due = (
            select(Notification)
            .where(
                Notification.target == target,
                # PostgreSQL checks only this condition again if another process claims the row in the meantime.
                Notification.due_at <= now,
                ~select(other)
                .where(other.target == target, other.due_at > now, other.attempts < TRIED_FIRST)
                .exists(),
            )
            .order_by(Notification.attempts >= TRIED_FIRST, Notification.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        for row in await session.scalars(due):
            row.due_at = now + lease
            row.attempts += 1
            message = NotificationText(row.title, row.body, row.severity)
            claimed.append(QueuedMessage(row.id, target, message, row.attempts))
    return claimed


async def next_due(session: AsyncSession, targets: Collection[str]) -> datetime | None:
    """Return when the first of these targets may get its messages; None if no message waits."""
    is_given_up = Notification.attempts >= TRIED_FIRST
    latest = (
        select(func.max(Notification.due_at).label("due_at"))
        .where(Notification.target.in_(targets))
        # Each message that failed `TRIED_FIRST` times is a group of its own, because no other message waits for it.
        .group_by(Notification.target, case((is_given_up, Notification.id), else_=0))
        .subquery()
    )
    found: datetime | None = await session.scalar(select(func.min(latest.c.due_at)))
    return found


async def mark_sent(session: AsyncSession, ids: Collection[int]) -> None:
    """Delete messages that their targets have accepted."""
    await session.execute(delete(Notification).where(Notification.id.in_(ids)))


async def postpone(session: AsyncSession, message: QueuedMessage, until: datetime) -> None:
    """Make a message due at `until`. Nothing changes if another process has claimed the message by now."""
    await session.execute(
        update(Notification)
        .where(Notification.id == message.id, Notification.attempts == message.attempts)
        .values(due_at=until)
    )


async def release(session: AsyncSession, message: QueuedMessage, now: datetime) -> None:
    """Make a claimed message due again, because its sending was not begun. The attempt does not count."""
    await session.execute(
        update(Notification)
        .where(Notification.id == message.id, Notification.attempts == message.attempts)
        .values(due_at=now, attempts=message.attempts - 1)
    )
