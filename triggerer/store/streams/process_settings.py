"""Stores the settings of every process of the service, so that the API can show the settings of other processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.processes.instance_ids import process_of
from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.schema.models import Instance, ProcessSettings

_REMEMBERED: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class SettingsOfProcess:
    """The settings of a process that is alive."""

    process: str
    """`<host>:<pid>`."""
    kinds: frozenset[str]
    """The kinds of the instances in the process, see `Instance.kind`."""
    settings: Sequence[dict[str, Any]]
    """The settings as `save_settings` stored them."""


async def save_settings(
    session: AsyncSession, process: str, settings: Sequence[dict[str, Any]]
) -> None:
    """Save the settings of a process, and delete old settings of processes that are no longer registered.

    Args:
        process: `<host>:<pid>`.
        settings: The settings, without secrets.
    """
    now = await database_now(session)
    registered = {process_of(one) for one in await session.scalars(select(Instance.id))}
    # A process saves its settings before it registers. So newer settings may belong to a process that has yet to
    # register.
    is_old = ProcessSettings.saved_at < now - _REMEMBERED
    old = set(await session.scalars(select(ProcessSettings.process).where(is_old)))
    gone = ProcessSettings.process.in_(old - registered)
    await session.execute(delete(ProcessSettings).where(gone))
    values = {"settings": list(settings), "saved_at": now}
    await session.execute(
        insert_into(session, ProcessSettings)
        .values(process=process, **values)
        .on_conflict_do_update(index_elements=[ProcessSettings.process], set_=values)
    )


async def published_settings(session: AsyncSession) -> list[SettingsOfProcess]:
    """Return the settings of the processes that are alive, sorted by process."""
    now = await database_now(session)
    kinds: dict[str, set[str]] = {}
    alive = select(Instance.id, Instance.kind).where(Instance.expires_at > now)
    for instance_id, kind in await session.execute(alive):
        kinds.setdefault(process_of(instance_id), set()).add(kind)
    rows = await session.scalars(
        select(ProcessSettings)
        .where(ProcessSettings.process.in_(kinds))
        .order_by(ProcessSettings.process)
    )
    return [
        SettingsOfProcess(row.process, frozenset(kinds[row.process]), row.settings) for row in rows
    ]
