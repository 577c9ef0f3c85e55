"""What the store shows while the demo runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.runs import ACTIVE_STATES, RunState
from triggerer.store.models import Asset, AssetEvent, DagFile, DagRun, QueuedAssetEvent, Watcher

JOIN = "join_flights_with_weather"
ANSWER = "which_weather_delays_which_carrier"
WATCHED = ("flights", "weather")


@dataclass(frozen=True, slots=True)
class Progress:
    """One consistent look at the store."""

    events: Mapping[str, int] = field(default_factory=dict)
    """Asset events by asset name."""
    waiting: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Events that no run has taken yet, by DAG id and asset name; zero is left out."""
    runs: Mapping[tuple[str, RunState], int] = field(default_factory=dict)
    watchers: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """State and error by asset name."""
    broken: tuple[str, ...] = ()

    @property
    def watched_events(self) -> int:
        return sum(self.events.get(name, 0) for name in WATCHED)

    @property
    def active_runs(self) -> int:
        return sum(count for (_, state), count in self.runs.items() if state in ACTIVE_STATES)

    def failed_runs(self) -> int:
        """Runs that ended in any way but success."""
        return sum(
            count
            for (_, state), count in self.runs.items()
            if state.is_final and state is not RunState.SUCCESS
        )

    def waiting_for_join(self, asset: str) -> int:
        """Events of one side that wait for the other."""
        return self.waiting.get((JOIN, asset), 0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing moves unless another message comes.

        What waits for the join alone does not count: it needs an event of the other side too.
        """
        one_sided = any(not self.waiting_for_join(asset) for asset in WATCHED)
        others = any(dag != JOIN for dag, _ in self.waiting)
        return not self.active_runs and one_sided and not others


async def look(session: AsyncSession) -> Progress:
    """Read the counts; the session's snapshot makes them fit together."""
    events = select(Asset.name, func.count(AssetEvent.id)).join(AssetEvent).group_by(Asset.name)
    waiting = (
        select(QueuedAssetEvent.dag_id, Asset.name, func.count())
        .join(Asset, Asset.id == QueuedAssetEvent.asset_id)
        .where(QueuedAssetEvent.run_pk.is_(None))
        .group_by(QueuedAssetEvent.dag_id, Asset.name)
    )
    runs = select(DagRun.dag_id, DagRun.state, func.count()).group_by(DagRun.dag_id, DagRun.state)
    watchers = select(Asset.name, Watcher.state, Watcher.error).join(
        Asset, Asset.id == Watcher.asset_id
    )
    files = await session.scalars(select(DagFile))
    return Progress(
        events={row[0]: row[1] for row in await session.execute(events)},
        waiting={(dag, name): count for dag, name, count in await session.execute(waiting)},
        runs={(dag, RunState(state)): count for dag, state, count in await session.execute(runs)},
        watchers={name: (state, error) for name, state, error in await session.execute(watchers)},
        broken=tuple(
            f"{error['file']}:{error['line']}: {error['reason']}"
            for file in files
            for error in file.errors
        ),
    )
