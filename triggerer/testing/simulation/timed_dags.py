"""DAGs with timetables, as a seed draws them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

from triggerer.domain.assets import Asset
from triggerer.domain.conditions import Condition
from triggerer.domain.schedules import OnAssets, OnBoth, OnEither, OnTime, Schedule
from triggerer.domain.timetables import (
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
    MultipleCronTriggerTimetable,
    Timetable,
)
from triggerer.testing.simulation.store import EPOCH, Dag

_X, _Y, _Z = ASSETS = tuple(Asset(name=name) for name in "xyz")
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


def draw_dag(rng: Random, dag_id: str) -> Dag:
    """Draw a DAG of any kind."""
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
    )
    return draw_schedule(rng, dag)


def draw_schedule(rng: Random, dag: Dag) -> Dag:
    """The same DAG with another schedule."""
    timetable = rng.choice(_TIMETABLES)
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
    """What somebody may change in its file: its timetable, its dates, catch-up or its cap."""
    drawn = rng.random()
    if drawn < 0.4:
        timetable = rng.choice(_TIMETABLES)
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
