"""Asks the service to let a watcher read its log again from an earlier position (a replay)."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.operations.audit import Action, record
from triggerer.store.watchers.replays import ReplayView, ask_for_replay


async def replay_watcher(
    session: AsyncSession,
    actor: Actor,
    asset: str,
    name: str,
    *,
    start: datetime | None,
    again: bool = False,
) -> ReplayView:
    """Store a request for a replay. The owner of the watcher's stream starts the replay, or shows why it cannot start.

    Args:
        asset: The asset's name or URI.
        start: Replay messages that were published from this instant on. None: from the earliest message.
        again: True: also make events for messages that already have events.
    Raises:
        UnknownWatcher: There is no such watcher.
        TriggererError: The watcher has no shared stream, or `start` is in the future. Or `again` is False, and a
            cleaning has deleted events from after `start`. The replay would create the deleted events again.
    """
    asked = await ask_for_replay(session, asset, name, start=start, reemit=again)
    await record(
        session,
        actor,
        Action.WATCHER_REPLAY,
        f"{asked.asset_name}/{asked.watcher}",
        after={"start": None if start is None else start.isoformat(), "again": again},
    )
    return asked
