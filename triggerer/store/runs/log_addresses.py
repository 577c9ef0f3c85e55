"""Stores and finds the addresses (`host:port`) at which executors serve the logs of runs to other machines."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.processes.instance_ids import host_and_pid
from triggerer.store.database.transactions import database_now, insert_into
from triggerer.store.schema.models import Instance, InstanceReport

_KEY = "log_address"


async def publish_log_address(session: AsyncSession, instance_id: str, address: str) -> None:
    """Store the `host:port` at which an executor serves logs."""
    now = await database_now(session)
    report = {_KEY: address}
    statement = insert_into(session, InstanceReport).values(
        instance_id=instance_id, version=1, report=report, reported_at=now
    )
    await session.execute(
        statement.on_conflict_do_update(
            index_elements=[InstanceReport.instance_id],
            set_={"report": report, "reported_at": now},
        )
    )


async def log_address_for(session: AsyncSession, executor: str) -> str | None:
    """Return the address of a living executor that serves the logs on the machine where `executor` ran.

    `executor` itself may have ended. None: no living executor on its machine serves logs.
    """
    host, _ = host_and_pid(executor)
    now = await database_now(session)
    query = (
        select(Instance.id, InstanceReport.report)
        .join(InstanceReport, InstanceReport.instance_id == Instance.id)
        .where(
            Instance.kind == "executor",
            Instance.expires_at > now,
            Instance.id.startswith(f"{host}:", autoescape=True),
        )
        .order_by(Instance.started_at.desc())
    )
    for _, report in await session.execute(query):
        if _KEY in report:
            return str(report[_KEY])
    return None
