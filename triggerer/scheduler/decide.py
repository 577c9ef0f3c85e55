"""Which runs the waiting events ask for: a snapshot in, decisions out; no clock, no database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from triggerer.domain.assets import AssetAlias
from triggerer.domain.conditions import Condition, Leaf, is_satisfied


@dataclass(frozen=True, slots=True)
class WaitingAsset:
    """An asset with events that are queued for a DAG."""

    asset_id: int
    name: str
    uri: str
    queued: int
    """How many, at least 1; not counted beyond the snapshot's bound."""
    aliases: frozenset[str] = frozenset()
    """The names of the DAG's aliases that resolve to it."""


@dataclass(frozen=True, slots=True)
class DagSnapshot:
    """A DAG that may be due, as read from the database."""

    dag_id: str
    condition: Condition
    max_active_runs: int
    active_runs: int
    events_per_run: int | None
    """None: a run takes everything that is queued."""
    waiting: tuple[WaitingAsset, ...]


@dataclass(frozen=True, slots=True)
class RunsToCreate:
    """Runs of one DAG, each of which takes what is queued when it is made."""

    dag_id: str
    count: int
    events_per_run: int | None
    asset_ids: tuple[int, ...]
    """The assets whose oldest events are taken where `events_per_run` is set."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is to be done for one snapshot."""

    runs: tuple[RunsToCreate, ...]
    recheck: tuple[str, ...]
    """DAGs that may be due for more runs as soon as these exist: the limit or the bound was reached."""
    at_capacity: tuple[str, ...] = ()
    """DAGs that have `max_active_runs` once these runs exist: the end of a run may make them due."""

    @property
    def unserved(self) -> tuple[str, ...]:
        """Those of `recheck` that get no run at all: they come first the next time."""
        served = {due.dag_id for due in self.runs}
        return tuple(dag_id for dag_id in self.recheck if dag_id not in served)


def decide(snapshot: Sequence[DagSnapshot], *, limit: int, bound: int) -> Decisions:
    """Return the runs to create: for each DAG those that its expression and its capacity allow.

    A DAG with `max_active_runs` gets none. Its events stay queued until the end of a run makes it due. At most
    `limit` runs are created, in the snapshot's order; see `unserved`.

    Args:
        bound: `WaitingAsset.queued` was counted up to this number.
    """
    runs: list[RunsToCreate] = []
    again: list[str] = []
    at_capacity: list[str] = []
    left = limit
    for dag in snapshot:
        capacity = max(dag.max_active_runs - dag.active_runs, 0)
        wanted = _due(dag, at_most=capacity)
        # If counting stopped at the bound, more runs may be due than `wanted`.
        cut_short = dag.events_per_run is not None and any(
            asset.queued >= bound for asset in dag.waiting
        )
        if wanted > left or (0 < wanted < capacity and cut_short):
            again.append(dag.dag_id)
        count = min(wanted, left)
        left -= count
        if count == capacity:
            at_capacity.append(dag.dag_id)
        if count:
            assets = tuple(asset.asset_id for asset in dag.waiting)
            runs.append(RunsToCreate(dag.dag_id, count, dag.events_per_run, assets))
    return Decisions(tuple(runs), tuple(again), tuple(at_capacity))


def _due(dag: DagSnapshot, *, at_most: int) -> int:
    """Return how many runs in a row the expression asks for."""
    queued = {asset: asset.queued for asset in dag.waiting}
    count = 0
    while count < at_most and is_satisfied(dag.condition, partial(_has, queued)):
        count += 1
        if dag.events_per_run is None:
            # The first run takes everything.
            break
        queued = {
            asset: number - dag.events_per_run
            for asset, number in queued.items()
            if number > dag.events_per_run
        }
    return count


def _has(queued: dict[WaitingAsset, int], leaf: Leaf) -> bool:
    if isinstance(leaf, AssetAlias):
        return any(leaf.name in asset.aliases for asset in queued)
    return any(asset.name == leaf.name and asset.uri == leaf.uri for asset in queued)
