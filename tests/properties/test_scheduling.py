"""The scheduler makes the same runs as a model, and no DAG uses an event twice.

The DAGs, events, pauses, caps, clocks and schedulers are random.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
import time_machine
from hypothesis import HealthCheck, example, given, settings
from sqlalchemy import Interval, String, cast, delete, literal, select, update

from tests.actors import TESTER
from tests.properties.scheduling_model import HOUR, DagSpec, ModelDag, Needs, names_in
from tests.properties.three_assets import THREE, fresh_copy
from tests.store.seeding import add_dag, emit, runs_of
from triggerer.domain.assets import Asset
from triggerer.domain.conditions import AssetAll, AssetAny, Condition
from triggerer.domain.schedules import (
    OnAssets,
    OnBoth,
    OnEither,
    OnTime,
    Schedule,
    schedule_to_json,
)
from triggerer.domain.timetables import CronDataIntervalTimetable
from triggerer.operations.cleaning import Limits, clean
from triggerer.scheduler import Scheduler
from triggerer.store.dags.due_moments import renew_due_moments
from triggerer.store.dags.pausing import set_paused
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.schema.models import (
    AssetEvent,
    Dag,
    DagRun,
    DagScheduleAsset,
    QueuedAssetEvent,
)
from triggerer.store.schema.models.dags import NEVER

BEGIN = datetime(2026, 3, 1, 10, 30, tzinfo=UTC)
HOURLY = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
EXPRESSIONS: st.SearchStrategy[Needs] = st.recursive(
    st.sampled_from(THREE), lambda some: st.tuples(st.sampled_from("&|"), some, some), max_leaves=4
)

SPECS = st.builds(
    DagSpec,
    kind=st.sampled_from(["assets", "time", "either", "both"]),
    needs=EXPRESSIONS,
    catchup=st.booleans(),
    events_per_run=st.sampled_from([None, None, 1, 2]),
    max_active_runs=st.sampled_from([1, 2, 16]),
    gap=st.sampled_from([None, None, timedelta(minutes=20)]),
    quiet=st.sampled_from([None, None, timedelta(minutes=7)]),
    depends_on_past=st.sampled_from([False, False, True]),
)
# The steps between two settlements. The number is a DAG, or an amount.
STEPS = st.one_of(
    st.tuples(st.just("emit"), st.integers(0, 2)),
    st.tuples(st.just("emit"), st.integers(0, 2)),
    st.tuples(st.just("pause"), st.integers(0, 2)),
    st.tuples(st.just("unpause"), st.integers(0, 2)),
    st.tuples(st.just("end"), st.integers(0, 2)),
    st.tuples(st.just("fail"), st.integers(0, 2)),
    # The least age of cleaned rows, in hours.
    st.tuples(st.just("clean"), st.sampled_from([0, 3, 60])),
    st.tuples(st.just("schedule"), st.integers(1, 4)),
    st.tuples(st.just("schedule"), st.integers(1, 4)),
)
CLOCKS = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 200)),
    # A clock that was wrong, by days, in either direction.
    st.tuples(st.just("set"), st.sampled_from([-3_000, -150, 4_000])),
)


# The hours by which the clock moves on, or is set.
HOURS = st.tuples(st.just("hours"), st.sampled_from([1, 1, 2, 3, 40, -2, -50]))


def condition_of(needs: Needs) -> Condition:
    if isinstance(needs, str):
        return Asset(f"x-test://{needs}", name=needs)
    kind, one, other = needs
    return (AssetAll if kind == "&" else AssetAny)(condition_of(one), condition_of(other))


def schedule_of(spec: DagSpec) -> Schedule:
    condition = condition_of(spec.needs)
    return {
        "assets": OnAssets(condition),
        "time": OnTime(HOURLY),
        "either": OnEither(HOURLY, condition),
        "both": OnBoth(HOURLY, condition),
    }[spec.kind]


_INSTANTS: dict[Any, list[str]] = {
    AssetEvent: ["timestamp"],
    Dag: [
        "start_date",
        "next_run_after",
        "next_interval_start",
        "next_interval_end",
        "last_run_at",
    ],
    DagRun: ["logical_date", "data_interval_start", "data_interval_end", "run_after", "queued_at"],
}


class Play:
    """Performs each step on a database and on the model."""

    def __init__(self, database: Database, specs: Sequence[DagSpec], start: datetime) -> None:
        self.database = database
        self.dags = {f"dag{number}": ModelDag(spec, start) for number, spec in enumerate(specs)}
        self.cleaned_before = datetime(2000, 1, 1, tzinfo=UTC)
        """The earliest instant to which the clock may be set back: earlier runs were deleted."""

    async def begin(self) -> None:
        async with self.database.transaction() as session:
            for table in (QueuedAssetEvent, DagScheduleAsset, DagRun, AssetEvent, Dag):
                await session.execute(delete(table))
        for dag_id, dag in self.dags.items():
            spec = dag.spec
            names: Iterable[str] = () if spec.kind == "time" else names_in(spec.needs)
            waits = sorted(THREE.index(name) + 1 for name in names)
            await add_dag(
                self.database,
                dag_id,
                schedule_to_json(schedule_of(spec)),
                assets=waits,
                start_date=dag.start,
                catchup=spec.catchup,
                events_per_run=spec.events_per_run,
                max_active_runs=spec.max_active_runs,
                min_run_gap=spec.gap and spec.gap.total_seconds(),
                quiet_period=spec.quiet and spec.quiet.total_seconds(),
                depends_on_past=spec.depends_on_past,
            )
            async with self.database.transaction() as session:
                row = await session.get(Dag, dag_id)
                assert row is not None
                await renew_due_moments(session, [row])

    async def do(self, what: str, number: int) -> None:
        now = await self.now()
        dag_id = f"dag{number % len(self.dags)}"
        match what:
            case "emit":
                (event,) = await emit(self.database, number + 1)
                for dag in self.dags.values():
                    dag.emit(THREE[number], event, now)
            case "pause" | "unpause":
                is_paused = what == "pause"
                async with self.database.transaction() as session:
                    await set_paused(session, dag_id, paused=is_paused)
                self.dags[dag_id].is_paused = is_paused
            case "end" | "fail":
                state = "success" if what == "end" else "failed"
                of_dag = (DagRun.dag_id == dag_id, DagRun.state == "queued")
                async with self.database.transaction() as session:
                    await session.execute(update(DagRun).where(*of_dag).values(state=state))
                for run in self.dags[dag_id].runs:
                    run.state = state if run.state == "queued" else run.state
            case "clean":
                await self.clean(now - number * HOUR)
            case "schedule":
                await self.schedule(number)
            case "hours" if self.cleaned_before - number * HOUR <= now:
                await self.move(-number * HOUR)

    async def clean(self, before: datetime) -> None:
        """Clean, and check that only ended runs without waiting events are deleted. Decisions may not change."""
        kept = {dag_id: await runs_of(self.database, dag_id) for dag_id in self.dags}
        cleaned = await clean(
            self.database, TESTER, Limits().with_events_and_runs(before), ack_timeout=HOUR
        )
        self.cleaned_before = max(self.cleaned_before, before)
        for dag_id, dag in self.dags.items():
            left = {run.id for run in await runs_of(self.database, dag_id)}
            there = [run for run in dag.runs if not run.is_deleted]
            for row, run in zip(kept[dag_id], there, strict=True):
                run.is_deleted = row.id not in left
                assert not run.is_deleted or (run.state != "queued" and run.run_after < before)
        assert cleaned.runs == sum(map(len, kept.values())) - sum(
            not run.is_deleted for dag in self.dags.values() for run in dag.runs
        )
        await self.compare()

    async def move(self, by: timedelta) -> None:
        """Add `by` to all stored instants, so that the database's clock seems to have been set back by `by`."""
        async with self.database.transaction() as session:
            for model, names in _INSTANTS.items():
                for name in names:
                    at = getattr(model, name)
                    moved = (
                        update(model).where(at < NEVER).values({name: at + literal(by, Interval())})
                    )
                    await session.execute(moved)
            # First give all runs temporary ids, so that the new ids do not collide.
            aside = DagRun.run_type + "__moved_" + cast(DagRun.id, String)
            await session.execute(update(DagRun).values(run_id=aside))
            for run in await session.scalars(select(DagRun).where(DagRun.run_type == "scheduled")):
                run.run_id = f"scheduled__{run.run_after.isoformat(timespec='microseconds')}"
        self.cleaned_before += by
        for dag in self.dags.values():
            dag.move(by)

    async def now(self) -> datetime:
        async with self.database.reading() as session:
            return await database_now(session)

    async def schedule(self, schedulers: int) -> None:
        """Let schedulers create the due runs side by side, and compare the runs with the model."""
        async with anyio.create_task_group() as tasks:
            for number in range(schedulers):
                limit = (32, 1, 3, 7)[number]
                scheduler = Scheduler(self.database, max_dagruns_to_create_per_loop=limit)
                tasks.start_soon(scheduler.run_once)
        for dag in self.dags.values():
            dag.settle(await self.now())
        await self.compare()

    async def compare(self) -> None:
        async with self.database.reading() as session:
            rows = list(await session.scalars(select(DagRun).order_by(DagRun.id)))
            queue = (
                await session.execute(
                    select(
                        QueuedAssetEvent.dag_id,
                        QueuedAssetEvent.asset_event_id,
                        QueuedAssetEvent.run_pk,
                    )
                )
            ).all()
        for dag_id, dag in self.dags.items():
            in_flight: dict[int | None, set[int]] = {}
            for _, event, pk in (row for row in queue if row[0] == dag_id):
                in_flight.setdefault(pk, set()).add(event)
            made = [
                (row.logical_date, frozenset(in_flight.pop(row.id, ())), row.state)
                for row in rows
                if row.dag_id == dag_id
            ]
            known = [run for run in dag.runs if not run.is_deleted]
            assert made == [(r.logical_date, r.events, r.state) for r in known], (dag_id, dag)
            waits = {event for some in dag.waiting.values() for event in some}
            assert in_flight == ({None: waits} if waits else {}), (dag_id, dag)


async def _on_sqlite(url: str, specs: Sequence[DagSpec], steps: Sequence[tuple[str, int]]) -> None:
    with time_machine.travel(BEGIN, tick=False) as host:
        clock = [BEGIN]
        async with open_database(url, now=lambda: clock[0]) as database:
            play = Play(database, specs, BEGIN.replace(minute=0) - 5 * HOUR)
            await play.begin()
            for what, number in [*steps, ("schedule", 2)]:
                if what in ("wait", "set"):
                    # Each step has its own instant, so that no two runs have the same.
                    moved = clock[0] + timedelta(minutes=number, microseconds=1)
                    if moved >= play.cleaned_before:
                        clock[0] = moved
                        host.move_to(moved)
                else:
                    clock[0] += timedelta(microseconds=1)
                    await play.do(what, number)


def _check(template: Path, specs: list[DagSpec], steps: list[tuple[str, int]]) -> None:
    anyio.run(_on_sqlite, fresh_copy(template), specs, steps)


_ANY: Any = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
PLAYS = (st.lists(SPECS, min_size=1, max_size=3), st.lists(STEPS | CLOCKS, max_size=25))


_FAILED = [("emit", 0), ("schedule", 1), ("fail", 0)]


@given(*PLAYS)
@example([DagSpec("assets")], [("emit", 0), ("set", -3_000)])
@example([DagSpec("both", catchup=True, events_per_run=1)], [("emit", 0)] * 3)
@example([DagSpec("either", catchup=True, max_active_runs=2)], [("emit", 0)])
@example(
    [DagSpec("assets", events_per_run=1, quiet=timedelta(minutes=7))],
    [("emit", 0), ("set", -150), ("emit", 0)],
)
@example(
    [DagSpec("either")],
    [("schedule", 1), ("emit", 0), ("schedule", 1), ("end", 0), ("clean", 0)],
)
@example([DagSpec("assets", depends_on_past=True)], [*_FAILED, ("clean", 0), ("emit", 0)])
@settings(max_examples=30, deadline=None, suppress_health_check=_ANY)
def test_the_runs_are_those_of_the_model(
    template: Path, specs: list[DagSpec], steps: list[tuple[str, int]]
) -> None:
    _check(template, specs, steps)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@given(*PLAYS)
@settings(max_examples=3_000, deadline=None, suppress_health_check=_ANY)
def test_the_runs_are_those_of_the_model_over_thousands_of_plays(
    template: Path, specs: list[DagSpec], steps: list[tuple[str, int]]
) -> None:
    _check(template, specs, steps)


async def _on_postgres(
    url: str, specs: Sequence[DagSpec], steps: Sequence[tuple[str, int]]
) -> None:
    async with open_database(url) as database:
        now = await Play(database, (), BEGIN).now()
        play = Play(database, specs, now.replace(minute=0, second=0, microsecond=0) - 5 * HOUR)
        await play.begin()
        for what, number in [*steps, ("schedule", 4)]:
            await play.do(what, number)


def _check_on_postgres(url: str, specs: list[DagSpec], steps: list[tuple[str, int]]) -> None:
    left = HOUR.total_seconds() - time.time() % HOUR.total_seconds()
    if left < 20:
        # A run could become due between a scheduler's look and the model's.
        time.sleep(left + 1)
    anyio.run(_on_postgres, url, specs, steps)


ON_POSTGRES = (
    st.lists(SPECS, min_size=1, max_size=3),
    st.lists(STEPS | HOURS, max_size=15),
)
_SET_BACK = [("emit", 0), ("schedule", 1), ("end", 0), ("hours", -2), ("emit", 0)]


@pytest.mark.services
@given(*ON_POSTGRES)
@example([DagSpec("assets", gap=timedelta(minutes=20))], _SET_BACK)
@example([DagSpec("assets", quiet=timedelta(minutes=7))], [("emit", 0), ("hours", -2)])
@example([DagSpec("assets", quiet=timedelta(minutes=7))], [("emit", 0), ("hours", 1)])
@example([DagSpec("both", catchup=True)], [*_SET_BACK, ("schedule", 4), ("hours", 40), ("emit", 0)])
@settings(max_examples=12, deadline=None, suppress_health_check=_ANY)
def test_on_postgresql_the_runs_are_those_of_the_model(
    seeded_postgres_url: str, specs: list[DagSpec], steps: list[tuple[str, int]]
) -> None:
    _check_on_postgres(seeded_postgres_url, specs, steps)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.services
@given(*ON_POSTGRES)
@settings(max_examples=2_000, deadline=None, suppress_health_check=_ANY)
def test_on_postgresql_the_runs_are_those_of_the_model_over_thousands_of_plays(
    seeded_postgres_url: str, specs: list[DagSpec], steps: list[tuple[str, int]]
) -> None:
    _check_on_postgres(seeded_postgres_url, specs, steps)
