"""Requests that a watcher reads its log again from an earlier position (a replay)."""

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
    """Store a request for a replay; see `triggerer.store.watchers.replays.ask_for_replay` for the arguments and errors.

    Args:
        again: True: also make events for messages that already have events.
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
