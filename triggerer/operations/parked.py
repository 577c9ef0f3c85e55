"""Replays and discards parked messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.errors import UnknownMessage
from triggerer.operations.audit import Action, record
from triggerer.store.listing.views import ParkedMessageView
from triggerer.store.watchers.parked_listing import (
    choose_parked,
    discard_parked,
    find_parked,
    find_undeclared,
    replay_parked,
)

_MOST_NAMED: Final = 1_000
"""The most message ids that a row of the audit names. The row always has the number of all messages."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The outcome of a replay of parked messages."""

    count: int
    """How many messages are delivered again."""
    undeclared: tuple[str, ...] = ()
    """Watchers, as `asset/watcher`, that no file declares any longer. Their messages stay parked."""


async def show_parked(session: AsyncSession, message_id: int) -> ParkedMessageView:
    """Return a stored or parked message with its traceback and content.

    Raises:
        UnknownMessage: There is no such message.
    """
    found = await find_parked(session, message_id)
    if found is None:
        raise UnknownMessage([message_id])
    return found


async def replay_messages(
    session: AsyncSession,
    actor: Actor,
    *,
    ids: Collection[int] = (),
    asset: str | None = None,
    watcher: str | None = None,
) -> ReplayResult:
    """Deliver parked messages to their watchers again.

    Args:
        ids: The ids of messages. Empty: all parked messages of watchers that a file declares.
        asset, watcher: Deliver only messages of this watcher of the asset. None: of all watchers.
    Raises:
        UnknownMessage: There is no message with one of `ids`, or it belongs to another watcher.
        UnknownWatcher: The watcher never existed.
        TriggererError: With `ids` or `watcher`: a chosen message belongs to a watcher that no file
            declares. Without `ids` and `watcher`: all parked messages belong to such watchers.
    """
    chosen = await choose_parked(session, ids=ids, asset=asset, watcher=watcher)
    undeclared = set[str]()
    if not ids and asset is None:
        of_undeclared = await find_undeclared(session, chosen)
        declared = [one for one in chosen if one not in of_undeclared]
        if declared:
            chosen, undeclared = declared, set(of_undeclared.values())
    subject = _subject(asset, watcher, chosen)
    count = await _change(session, actor, Action.PARKED_REPLAY, subject, chosen, replay_parked)
    return ReplayResult(count, tuple(sorted(undeclared)))


async def discard_messages(
    session: AsyncSession,
    actor: Actor,
    *,
    ids: Collection[int] = (),
    asset: str | None = None,
    watcher: str | None = None,
) -> int:
    """Delete messages for good: parked messages, and messages that are stored for a watcher. Return their number.

    Args:
        ids: The ids of messages. Empty: all stored and parked messages.
        asset, watcher: Delete only messages of this watcher of the asset. None: of all watchers.
    Raises:
        UnknownMessage: One of `ids` belongs to no message.
        UnknownWatcher: The watcher never existed.
    """
    chosen = await choose_parked(session, ids=ids, asset=asset, watcher=watcher)
    subject = _subject(asset, watcher, chosen)
    return await _change(session, actor, Action.PARKED_DISCARD, subject, chosen, discard_parked)


async def _change(
    session: AsyncSession,
    actor: Actor,
    action: Action,
    subject: str,
    chosen: Sequence[int],
    change: Callable[[AsyncSession, Sequence[int]], Awaitable[int]],
) -> int:
    number = await change(session, chosen) if chosen else 0
    if number:
        after = {"messages": number, "ids": list(chosen[:_MOST_NAMED])}
        await record(session, actor, action, subject, after=after)
    return number


def _subject(asset: str | None, watcher: str | None, chosen: Sequence[int]) -> str:
    if asset is not None:
        return f"{asset}/{watcher}"
    return str(chosen[0]) if len(chosen) == 1 else f"{len(chosen)} messages"
