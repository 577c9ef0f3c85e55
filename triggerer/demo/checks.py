"""Compares the number of messages at each station (broker, store, runs, files) with the expected number."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.store.listing.counts import count_asset


@dataclass(frozen=True, slots=True)
class Check:
    """A count at one station, and the expected count."""

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
    """Count an asset's events, and how many of them are in runs of a DAG."""
    counts = await count_asset(session, asset=asset, dag_id=dag_id)
    return [
        Check("asset events", asset, expected, counts.events),
        Check("  of distinct messages", asset, expected, counts.different),
        Check("events in runs that succeeded", asset, expected, counts.in_successful_runs),
        Check("events without a run", asset, 0, counts.waiting),
    ]
