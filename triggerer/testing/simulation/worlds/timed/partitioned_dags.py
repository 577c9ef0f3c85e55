"""Draws the DAGs of a seed that are scheduled by partition keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Final

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import Condition
from triggerer.domain.schedules import Schedule, schedule_of
from triggerer.partitions import (
    FanOutMapper,
    FixedKeyMapper,
    HourWindow,
    IdentityMapper,
    MinimumCount,
    PartitionMapper,
    QuarterWindow,
    RollupMapper,
    SegmentWindow,
    StartOfHourMapper,
    StartOfQuarterMapper,
    WaitForAll,
    WaitPolicy,
    WaitUntil,
)
from triggerer.testing.simulation.checks.partition_model import (
    AFTER_FIRST,
    AFTER_HOUR,
    AFTER_QUARTER,
    MINUTE_FORMAT,
    REGIONS,
    Keyed,
)
from triggerer.testing.simulation.database.model import EPOCH, Dag
from triggerer.timetables import PartitionedAssetTimetable

_A, _B = ASSETS = (Asset(name="a"), Asset(name="b"))


def _quarter(policy: WaitPolicy) -> RollupMapper:
    mapper = StartOfQuarterMapper(input_format="%Y-%m")
    return RollupMapper(upstream_mapper=mapper, window=QuarterWindow(), wait_policy=policy)


_MAPPERS: Final[dict[str, PartitionMapper]] = {
    "same": IdentityMapper(),
    "all": _quarter(WaitForAll()),
    "two": _quarter(MinimumCount(2)),
    "late": _quarter(WaitUntil(AFTER_QUARTER)),
    "regions": RollupMapper(
        upstream_mapper=FixedKeyMapper("world"),
        window=SegmentWindow(REGIONS),
        wait_policy=WaitUntil(AFTER_FIRST),
    ),
    "months": FanOutMapper(
        upstream_mapper=StartOfQuarterMapper(input_format="%Y-Q{quarter}"), window=QuarterWindow()
    ),
}
_HOURS: Final = StartOfHourMapper(input_format=MINUTE_FORMAT)


def _hour(policy: WaitPolicy) -> RollupMapper:
    return RollupMapper(upstream_mapper=_HOURS, window=HourWindow(), wait_policy=policy)


_OF_TIMETABLES: Final[dict[str, PartitionMapper]] = {
    "same": IdentityMapper(),
    "hour": _HOURS,
    "hour two": _hour(MinimumCount(2)),
    "hour late": _hour(WaitUntil(AFTER_HOUR)),
}
"""The mappers for keys that timetables produce."""
_NEEDS: Final[dict[str, Condition]] = {"a": _A, "a & b": _A & _B, "a | b": _A | _B}


def schedule_for(keyed: Keyed) -> Schedule:
    """Return the product's schedule that corresponds to the checker's model of a schedule."""
    mappers = {
        asset: {**_MAPPERS, **_OF_TIMETABLES}[kind]
        for asset, kind in zip(ASSETS, keyed.mappers, strict=True)
        if asset.name in keyed.assets
    }
    timetable = PartitionedAssetTimetable(
        assets=_NEEDS[keyed.needs], partition_mapper_config=mappers
    )
    schedule = schedule_of(timetable)
    assert schedule is not None
    return schedule


def draw_dag(rng: Random, dag_id: str, keyed: Keyed | None = None) -> Dag:
    """Draw a partitioned DAG. `keyed` is the model of the DAG's schedule; None: draw the model too."""
    keyed = keyed or _draw_keyed(rng)
    is_late = rng.random() < 0.2
    return Dag(
        dag_id,
        _NEEDS[keyed.needs],
        max_active_runs=rng.choice((1, 2, 16)),
        events_per_run=None,
        schedule=schedule_for(keyed),
        start_date=EPOCH + timedelta(minutes=rng.randint(-30, 60)) if is_late else None,
        min_run_gap_s=rng.choice((None, None, None, 20.0)),
        quiet_period_s=rng.choice((None, None, 30.0)),
        depends_on_past=rng.random() < 0.1,
        keyed=keyed,
    )


def draw_follower(rng: Random, dag_id: str) -> Dag:
    """Draw a partitioned DAG whose assets are outlets of other DAGs.

    The partition keys of these assets' events come from timetables.
    """
    return draw_dag(rng, dag_id, _draw_keyed_by_time(rng))


def draw_change(rng: Random, dag: Dag, *, is_follower: bool = False) -> Dag:
    """Draw a change of the DAG's file: the mappers and the expression, the quiet period, or the cap on runs."""
    drawn = rng.random()
    if drawn < 0.3:
        return replace(dag, max_active_runs=rng.choice((1, 2, 16)))
    if drawn < 0.5:
        return replace(dag, quiet_period_s=rng.choice((None, 30.0)))
    keyed = _draw_keyed_by_time(rng) if is_follower else _draw_keyed(rng)
    return replace(dag, keyed=keyed, schedule=schedule_for(keyed), condition=_NEEDS[keyed.needs])


def _draw_keyed(rng: Random) -> Keyed:
    kinds = sorted(_MAPPERS)
    if rng.random() < 0.5:
        # Choose mappers whose runs have the same keys for both assets.
        kinds = rng.choice((["all", "late", "two"], ["all", "late", "same"], ["months", "same"]))
    return Keyed(rng.choice(sorted(_NEEDS)), (rng.choice(kinds), rng.choice(kinds)))


def _draw_keyed_by_time(rng: Random) -> Keyed:
    kinds = rng.choice((("same",), ("hour", "hour two", "hour late"), sorted(_OF_TIMETABLES)))
    return Keyed(rng.choice(sorted(_NEEDS)), (rng.choice(kinds), rng.choice(kinds)))
