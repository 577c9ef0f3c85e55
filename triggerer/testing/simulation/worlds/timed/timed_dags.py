"""Draws the DAGs of a seed that have timetables."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import Condition
from triggerer.domain.schedules import OnAssets, OnBoth, OnEither, OnTime, Schedule
from triggerer.domain.timetables import (
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    Keyed,
    MultipleCronTriggerTimetable,
    Timetable,
)
from triggerer.testing.simulation.checks.partition_model import MINUTE_FORMAT
from triggerer.testing.simulation.database.model import EPOCH, Dag
from triggerer.testing.simulation.worlds.timed import partitioned_dags

_X, _Y, _Z = ASSETS = tuple(Asset(name=name) for name in "xyz")
OUTLETS = partitioned_dags.ASSETS
"""The assets that the runs update."""
_CONDITIONS: tuple[Condition, ...] = (_X, _Y, _X & _Y, _X | _Y, _X & (_Y | _Z))
_TIMETABLES: tuple[Timetable, ...] = (
    CronDataIntervalTimetable("*/10 * * * *", timezone="UTC"),
    CronDataIntervalTimetable("5 * * * *", timezone="Europe/Zurich"),
    CronTriggerTimetable("*/15 * * * *", timezone="UTC"),
    CronTriggerTimetable("3,33 * * * *", timezone="UTC", interval=timedelta(minutes=30)),
    MultipleCronTriggerTimetable("7 * * * *", "*/20 * * * *", timezone="UTC"),
    DeltaDataIntervalTimetable(timedelta(minutes=12)),
    DeltaTriggerTimetable(timedelta(minutes=9)),
)
# No two timetables of `_KEYED` run the same data interval at different times. Otherwise a DAG that
# changes from one to the other would run this interval again.
_KEYED: tuple[Timetable, ...] = (
    CronPartitionTimetable("*/12 * * * *", timezone="UTC", run_offset=-1, key_format=MINUTE_FORMAT),
    CronPartitionTimetable("1,31 * * * *", timezone="UTC", run_offset=1, key_format=MINUTE_FORMAT),
    CronPartitionTimetable(
        "*/20 * * * *", timezone="Europe/Zurich", run_offset=-2, key_format="%Y-%m-%dT%H:%M%z"
    ),
    *(
        Keyed(timetable, timezone="UTC", key_format=MINUTE_FORMAT)
        for timetable in (_TIMETABLES[0], _TIMETABLES[3], _TIMETABLES[5])
    ),
)


def draw_dag(rng: Random, dag_id: str, *, is_followed: bool) -> Dag:
    """Draw a DAG. If other DAGs wait for its outlet, its timetable usually produces partition keys."""
    start = EPOCH + timedelta(minutes=rng.randint(-180, 30))
    dag = Dag(
        dag_id,
        None,
        max_active_runs=rng.choice((1, 2, 16)),
        events_per_run=rng.choice((None, None, 1, 2)),
        start_date=start,
        end_date=start + timedelta(hours=4) if rng.random() < 0.15 else None,
        catchup=rng.random() < 0.5,
        min_run_gap_s=rng.choice((None, None, 60.0)),
        quiet_period_s=rng.choice((None, None, 30.0)),
        depends_on_past=rng.random() < 0.15,
        outlet=rng.choice((OUTLETS[0], *OUTLETS)).name,
    )
    return _draw_schedule(rng, dag, 0.9 if is_followed else 0.2)


def _draw_schedule(rng: Random, dag: Dag, keyed: float) -> Dag:
    """Draw a schedule for a DAG.

    Args:
        keyed: The probability that the timetable produces partition keys.
    """
    timetable = _draw_timetable(rng, keyed)
    condition = rng.choice(_CONDITIONS)
    schedule: Schedule = rng.choice(
        (
            OnTime(timetable),
            OnTime(timetable),
            OnEither(timetable, condition),
            OnBoth(timetable, condition),
            OnAssets(condition),
        )
    )
    is_timed = isinstance(schedule, OnTime)
    return replace(dag, schedule=schedule, condition=None if is_timed else condition)


def draw_change(rng: Random, dag: Dag) -> Dag:
    """Draw a change of the DAG's file: the timetable, the start date, catch-up, or the cap on runs."""
    if dag.keyed is not None:
        return partitioned_dags.draw_change(rng, dag, is_follower=True)
    drawn = rng.random()
    if drawn < 0.4:
        timetable = _draw_timetable(rng, 0.4)
        match dag.on:
            case OnTime():
                return replace(dag, schedule=OnTime(timetable))
            case OnEither(_, condition):
                return replace(dag, schedule=OnEither(timetable, condition))
            case OnBoth(_, condition):
                return replace(dag, schedule=OnBoth(timetable, condition))
    if drawn < 0.6:
        return replace(dag, catchup=not dag.catchup)
    if drawn < 0.8 and dag.start_date is not None:
        return replace(dag, start_date=dag.start_date + timedelta(minutes=rng.randint(-30, 30)))
    return replace(dag, max_active_runs=rng.choice((1, 2, 16)))


def _draw_timetable(rng: Random, keyed: float) -> Timetable:
    return rng.choice(_KEYED if rng.random() < keyed else _TIMETABLES)
