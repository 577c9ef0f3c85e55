"""The demo's books: what a station of the way has, next to what it has to have."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.listing.counts import count_asset


@dataclass(frozen=True, slots=True)
class Check:
    """One count at one station, next to what it has to be."""

    station: str
    what: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        return self.expected == self.found


async def asset_checks(
    session: AsyncSession, asset: str, *, dag_id: str, expected: int
) -> list[Check]:
    """Count an asset's events, and their places in runs of a DAG."""
    counts = await count_asset(session, asset=asset, dag_id=dag_id)
    return [
        Check("asset events", asset, expected, counts.events),
        Check("  of different messages", asset, expected, counts.different),
        Check("events in runs that succeeded", asset, expected, counts.in_successful_runs),
        Check("events that no run took", asset, 0, counts.waiting),
    ]
