"""The audit: a row for each change that a person or program requested.

The row is written in the transaction of the change. If a change takes many transactions, such as a cleaning, the row is
written at the start of the change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.actors import Actor
from triggerer.store.audit.recording import insert_audit


class Action(StrEnum):
    """All actions that the audit can show. The part before the dot is the kind of the subject."""

    DAG_PAUSE = "dag.pause"
    DAG_UNPAUSE = "dag.unpause"
    DAG_TRIGGER = "dag.trigger"
    DAG_DELETE = "dag.delete"
    BACKFILL_START = "backfill.start"
    BACKFILL_CANCEL = "backfill.cancel"
    RUN_CANCEL = "run.cancel"
    RUN_RETRY = "run.retry"
    RUN_CLEAR = "run.clear"
    RUN_RESOLVE = "run.resolve"
    ASSET_EMIT = "asset.emit"
    ASSET_DELETE = "asset.delete"
    QUEUE_DELETE = "queue.delete"
    WATCHER_REPLAY = "watcher.replay"
    PARKED_REPLAY = "parked.replay"
    PARKED_DISCARD = "parked.discard"
    DATABASE_MIGRATE = "database.migrate"
    DATABASE_CLEAN = "database.clean"
    DATABASE_RESTORED = "database.restored"
    TOKEN_CREATE = "token.create"
    TOKEN_REVOKE = "token.revoke"
    LOGIN_CREATE = "login.create"
    SESSION_OPEN = "session.open"
    SESSION_END = "session.end"


async def record(
    session: AsyncSession,
    actor: Actor,
    action: Action,
    subject: str,
    *,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Record a change in the caller's transaction. Secrets in `before` and `after` are hidden.

    Args:
        subject: The name of the changed object. A DAG's name is its id; a run's name is the DAG id, a space and the
            run id.
        before, after: The old and the new values, as JSON. None: the change has no such values.
    """
    await insert_audit(session, actor, action.value, subject, [(before, after)])


async def record_each(
    session: AsyncSession,
    actor: Actor,
    action: Action,
    subject: str,
    after: Sequence[Mapping[str, Any]],
) -> None:
    """Record several changes of one object like `record`, with one statement. A change has only new values."""
    await insert_audit(session, actor, action.value, subject, [(None, one) for one in after])
