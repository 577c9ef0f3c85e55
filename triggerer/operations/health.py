"""Reports whether each part of the service is alive, by the heartbeats of its instances."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from triggerer.errors import StoreError
from triggerer.store.audit.cleanings import CleaningState, read_state
from triggerer.store.listing.views import InstanceView
from triggerer.store.streams.listing import list_instances
from triggerer.store.streams.reports import Sessions

EXPECTED: Final = ("triggerer", "scheduler", "dag-processor", "executor")
"""The parts without which the service does not work. The API is reported only if it has an instance."""


@dataclass(frozen=True, slots=True)
class PartHealth:
    """One part of the service."""

    kind: str
    is_healthy: bool
    running: int
    """The number of instances whose latest heartbeat is recent."""
    heartbeat_at: datetime | None
    """The latest heartbeat of any instance. None: there is no instance."""
    instances: list[InstanceView]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the whole service."""

    is_healthy: bool
    database: str | None
    """The error of the database. None: the database could be read."""
    parts: list[PartHealth]
    cleaning: CleaningState | None
    """How the last cleanings of the database ended. A failed cleaning does not make the service unhealthy.

    None: no scheduler has run yet, or the database could not be read."""


async def read_health(reading: Sessions) -> Health:
    """Return the health of each part. If the database cannot be read, return only its error.

    Args:
        reading: `Database.reading`, or `DatabaseUse.reading` of the API, which limits the time.
    """
    try:
        async with reading() as session:
            instances = await list_instances(session)
            cleaning = await read_state(session)
    except StoreError as error:
        return Health(is_healthy=False, database=error.message, parts=[], cleaning=None)
    kinds = sorted({*EXPECTED, *(one.kind for one in instances)})
    parts = [_part(kind, [one for one in instances if one.kind == kind]) for kind in kinds]
    return Health(all(one.is_healthy for one in parts), None, parts, cleaning)


def _part(kind: str, instances: list[InstanceView]) -> PartHealth:
    running = [one for one in instances if one.state == "running"]
    return PartHealth(
        kind=kind,
        is_healthy=bool(running),
        running=len(running),
        heartbeat_at=max((one.heartbeat_at for one in instances if one.heartbeat_at), default=None),
        instances=instances,
    )
