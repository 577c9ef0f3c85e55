"""Random partitioned DAGs, events, pauses, caps, clocks and schedulers: the runs of the keys are those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings
from sqlalchemy import delete, select, update

from tests.properties.partition_model import KEYS, PATIENCE, ModelDag, Spec
from tests.properties.two_assets import ASSETS, fresh_copy
from tests.store.partitions import asset, emit_keys, partitioned
from tests.store.seeding import add_dag
from triggerer.domain.assets import Asset
from triggerer.domain.conditions import AssetAll, AssetAny, Condition
from triggerer.operations.queued_events import delete_queued_events
from triggerer.partitions import (
    FanOutMapper,
    IdentityMapper,
    MinimumCount,
    PartitionMapper,
    QuarterWindow,
    RollupMapper,
    StartOfQuarterMapper,
    WaitForAll,
    WaitUntil,
)
from triggerer.scheduler import Scheduler, dividing
from triggerer.store.engine.database import Database, database_now
from triggerer.store.engine.opening import open_database
from triggerer.store.models import (
    AssetEvent,
    Dag,
    DagPartition,
    DagPartitionEvent,
    DagPartitionPart,
    DagRun,
    DagScheduleAsset,
    QueuedAssetEvent,
)
from triggerer.store.queries.scheduling.pausing import set_paused
from triggerer.store.queries.scheduling.remapping import return_to_queue

BEGIN = datetime(2026, 3, 31, 23, 0, tzinfo=UTC)
A, B = (asset(name) for name in ASSETS)
NEEDS: dict[str, Condition] = {"a": A, "a & b": AssetAll(A, B), "a | b": AssetAny(A, B)}
_MONTHS = StartOfQuarterMapper(input_format="%Y-%m")


def _quarter(policy: Any) -> RollupMapper:
    return RollupMapper(upstream_mapper=_MONTHS, window=QuarterWindow(), wait_policy=policy)


MAPPERS: dict[str, PartitionMapper] = {
    "same": IdentityMapper(),
    "all": _quarter(WaitForAll()),
    "two": _quarter(MinimumCount(2)),
    "late": _quarter(WaitUntil(PATIENCE)),
    "months": FanOutMapper(
        upstream_mapper=StartOfQuarterMapper(input_format="%Y-Q{quarter}"), window=QuarterWindow()
    ),
}
_KINDS = st.sampled_from(list(MAPPERS))
SPECS = st.builds(
    Spec,
    needs=st.sampled_from(list(NEEDS)),
    mappers=st.tuples(_KINDS, _KINDS),
    max_active_runs=st.sampled_from([1, 2, 16, 16]),
)
_KEY = st.integers(0, len(KEYS) - 1)
EMIT = st.tuples(st.just("emit"), st.integers(0, 1), st.lists(_KEY, min_size=1, max_size=6))
STEPS = st.one_of(
    EMIT,
    EMIT,
    st.tuples(st.just("schedule"), st.integers(1, 4)),
    st.tuples(st.sampled_from(["pause", "unpause", "end", "end", "remap"]), st.integers(0, 1)),
    st.tuples(st.just("delete"), st.integers(0, 1), st.integers(0, 1)),
)
WAITS = st.tuples(st.just("wait"), st.integers(1, 100))


class Play:
    """Does the same to a database and to the model."""

    def __init__(self, database: Database, specs: Sequence[Spec]) -> None:
        self.database = database
        self.dags = {f"dag{number}": ModelDag(spec) for number, spec in enumerate(specs)}

    async def begin(self) -> None:
        tables = (DagPartition, DagPartitionEvent, DagPartitionPart, QueuedAssetEvent)
        async with self.database.transaction() as session:
            for table in (*tables, DagScheduleAsset, DagRun, AssetEvent, Dag):
                await session.execute(delete(table))
        for dag_id, dag in self.dags.items():
            spec = dag.spec
            schedule = partitioned(
                NEEDS[spec.needs],
                partition_mapper_config={
                    Asset(f"x-test://{name}", name=name): MAPPERS[mapper]
                    for name, mapper in zip(ASSETS, spec.mappers, strict=True)
                    if name in spec.assets
                },
            )
            waits = [ASSETS.index(name) + 1 for name in spec.assets]
            cap = spec.max_active_runs
            await add_dag(self.database, dag_id, schedule, assets=waits, max_active_runs=cap)

    async def do(self, what: str, number: int, more: Any = None) -> None:
        dag_id = f"dag{number % len(self.dags)}"
        dag = self.dags[dag_id]
        match what:
            case "emit":
                keys = [KEYS[one] for one in more]
                events = await emit_keys(self.database, keys, asset_id=number + 1)
                for one in self.dags.values():
                    for event, key in zip(events, keys, strict=True):
                        one.emit(event, ASSETS[number], key)
            case "pause" | "unpause":
                dag.is_paused = what == "pause"
                async with self.database.transaction() as session:
                    await set_paused(session, dag_id, paused=dag.is_paused)
            case "end":
                async with self.database.transaction() as session:
                    await session.execute(
                        update(DagRun).where(DagRun.dag_id == dag_id).values(state="success")
                    )
                dag.runs = [(key, events, "success") for key, events, _ in dag.runs]
            case "remap":
                async with self.database.transaction() as session:
                    await return_to_queue(session, [dag_id])
                dag.remap()
            case "delete":
                async with self.database.transaction() as session:
                    await delete_queued_events(session, dag=dag_id, asset=ASSETS[more])
                dag.delete(ASSETS[more])
            case "schedule":
                await self.schedule(number)

    async def schedule(self, schedulers: int) -> None:
        """So many schedulers make what is due, side by side; then the runs are those of the model."""
        async with anyio.create_task_group() as tasks:
            for number in range(schedulers):
                limit = (32, 1, 3, 7)[number]
                scheduler = Scheduler(self.database, max_dagruns_to_create_per_loop=limit)
                tasks.start_soon(scheduler.run_once)
        async with self.database.reading() as session:
            now = await database_now(session)
        for dag in self.dags.values():
            dag.settle(now)
        await self.compare()

    async def compare(self) -> None:
        async with self.database.reading() as session:
            rows = list(await session.scalars(select(DagRun).order_by(DagRun.id)))
            shares = list(await session.scalars(select(DagPartitionEvent)))
            parts = list(await session.scalars(select(DagPartitionPart)))
            queued = select(QueuedAssetEvent).where(QueuedAssetEvent.run_pk.is_(None))
            queue = list(await session.scalars(queued))
        for dag_id, dag in self.dags.items():
            taken: dict[int | None, set[tuple[str, int]]] = {}
            for share in shares:
                if share.dag_id == dag_id:
                    taken.setdefault(share.run_pk, set()).add(
                        (share.partition_key, share.asset_event_id)
                    )
            made = []
            for row in (row for row in rows if row.dag_id == dag_id):
                ours = taken.pop(row.id, set())
                assert {key for key, _ in ours} == {row.partition_key}
                made.append((row.partition_key, frozenset(event for _, event in ours), row.state))
            assert made == dag.runs, (dag_id, dag)
            waits = {(key, event) for key, state in dag.keys.items() for event in state.waits}
            assert taken.get(None, set()) == waits, (dag_id, dag)
            assert taken.keys() <= {None}, (dag_id, dag)
            left = sorted(one.asset_event_id for one in queue if one.dag_id == dag_id)
            assert left == sorted(event for event, _, _ in dag.queue), (dag_id, dag)
            there = {one.partition_key for one in parts if one.dag_id == dag_id}
            assert there == {key for key, _ in waits}


async def _on_sqlite(url: str, specs: Sequence[Spec], steps: Sequence[tuple[Any, ...]]) -> None:
    clock = [BEGIN]
    async with open_database(url, now=lambda: clock[0]) as database:
        play = Play(database, specs)
        await play.begin()
        for what, *more in [*steps, ("schedule", 2)]:
            # A moment of its own for each, so that no two runs are of one instant.
            clock[0] += timedelta(microseconds=1)
            if what == "wait":
                clock[0] += timedelta(minutes=more[0])
            else:
                await play.do(what, *more)


async def _on_postgres(url: str, specs: Sequence[Spec], steps: Sequence[tuple[Any, ...]]) -> None:
    async with open_database(url) as database:
        play = Play(database, specs)
        await play.begin()
        for what, *more in [*steps, ("schedule", 4)]:
            await play.do(what, *more)


def _check(template: Path, specs: list[Spec], steps: list[tuple[Any, ...]]) -> None:
    anyio.run(_on_sqlite, fresh_copy(template), specs, steps)


_ANY: Any = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
PLAYS = (st.lists(SPECS, min_size=1, max_size=2), st.lists(STEPS | WAITS, max_size=25))
_Q1 = [KEYS.index(month) for month in ("2026-01", "2026-02", "2026-03")]


@given(*PLAYS)
@example([Spec("a", ("all", "same"))], [("emit", 0, _Q1), ("schedule", 3), ("emit", 0, _Q1[:1])])
@example([Spec("a", ("late", "same"))], [("emit", 0, _Q1[:1]), ("schedule", 1), ("wait", 95)])
@example(
    [Spec("a", ("months", "same"), 1)],
    [("emit", 0, [0]), ("schedule", 1), ("remap", 0), ("end", 0)],
)
@settings(max_examples=60, deadline=None, suppress_health_check=_ANY)
def test_the_runs_of_partition_keys_are_those_of_the_model(
    template: Path,
    monkeypatch: pytest.MonkeyPatch,
    specs: list[Spec],
    steps: list[tuple[Any, ...]],
) -> None:
    monkeypatch.setattr(dividing, "MOST_EVENTS", 4)
    _check(template, specs, steps)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@given(*PLAYS)
@settings(max_examples=3_000, deadline=None, suppress_health_check=_ANY)
def test_the_runs_of_partition_keys_are_those_of_the_model_over_thousands_of_plays(
    template: Path, specs: list[Spec], steps: list[tuple[Any, ...]]
) -> None:
    _check(template, specs, steps)


# Its clock cannot be set, and all deadlines are past.
@pytest.mark.services
@given(st.lists(SPECS, min_size=1, max_size=2), st.lists(STEPS, max_size=15))
@settings(max_examples=12, deadline=None, suppress_health_check=_ANY)
def test_on_postgresql_the_runs_of_partition_keys_are_those_of_the_model(
    seeded_postgres_url: str, specs: list[Spec], steps: list[tuple[Any, ...]]
) -> None:
    anyio.run(_on_postgres, seeded_postgres_url, specs, steps)
