"""Performs a play (`partition_plays`) on a database and on the model of partition keys, and compares the runs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from datetime import timedelta
from typing import Any

import anyio
from sqlalchemy import delete, select, update

from tests.actors import TESTER
from tests.properties.partition_model import ModelDag, ModelEvent, Spec
from tests.properties.partition_plays import Drawn, Step, schedule_of
from tests.properties.set_clocks import Clock, PostgresClock, SqliteClock
from tests.properties.three_assets import ALIASES, THREE
from tests.store.partitions import asset
from tests.store.seeding import NOW
from triggerer.domain.dag_files.merging import merge
from triggerer.domain.dag_files.parsed import ParsedAsset, ParsedDag, ParsedFile
from triggerer.operations.cleaning import Limits, clean
from triggerer.operations.queued_events import delete_queued_events
from triggerer.scheduler import Scheduler
from triggerer.scheduler.explaining import why_not
from triggerer.store.dags.pausing import set_paused
from triggerer.store.dags.sync import read_incumbents, sync_folder
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.partitions.remapping import return_to_queue
from triggerer.store.schema.models import (
    AssetAliasMember,
    AssetEvent,
    Dag,
    DagPartition,
    DagPartitionEvent,
    DagPartitionPart,
    DagRun,
    DagScheduleAlias,
    DagScheduleAsset,
    QueuedAssetEvent,
)
from triggerer.store.schema.models.dags import NEVER


def run_on_sqlite(url: str, play: Drawn) -> None:
    """Run a play on a SQLite database that has the three assets and the aliases.

    Raises:
        AssertionError: The runs differ from the model's.
    """
    anyio.run(_on_sqlite, url, *play)


def run_on_postgres(url: str, play: Drawn) -> None:
    """Run a play on a PostgreSQL database whose clock can be set.

    Raises:
        AssertionError: The runs differ from the model's.
    """
    anyio.run(_on_postgres, url, *play)


async def _on_sqlite(url: str, specs: list[Spec], steps: list[Step]) -> None:
    clock = SqliteClock()
    async with open_database(url, now=lambda: clock.now) as database:
        await Play(database, clock, specs).run(steps)


async def _on_postgres(url: str, specs: list[Spec], steps: list[Step]) -> None:
    async with open_database(url) as database:
        play = Play(database, PostgresClock(database), specs)
        await play.clear()
        await play.run(steps)


class Play:
    """Performs each step on a database and on the model."""

    def __init__(self, database: Database, clock: Clock, specs: Sequence[Spec]) -> None:
        self.database = database
        self.clock = clock
        self.members: dict[str, set[str]] = {alias: set() for alias in ALIASES}
        self.dags = {
            f"dag{number}": ModelDag(spec, self.members) for number, spec in enumerate(specs)
        }
        self.schedulers = [
            Scheduler(database, max_dagruns_to_create_per_loop=limit) for limit in (32, 1, 3, 7)
        ]

    async def clear(self) -> None:
        """Delete the rows of the previous play."""
        tables = (DagPartition, DagPartitionEvent, DagPartitionPart, QueuedAssetEvent)
        of_dags = (DagScheduleAsset, DagScheduleAlias, AssetAliasMember)
        async with self.database.transaction() as session:
            for table in (*tables, *of_dags, DagRun, AssetEvent, Dag):
                await session.execute(delete(table))

    async def run(self, steps: Sequence[Step]) -> None:
        """Perform all steps, and compare the runs with the model at the end."""
        await self.clock.begin()
        await self._read_file()
        for what, *more in [*steps, ("schedule", 4)]:
            minutes = more[0] if what in ("wait", "set") else 0
            await self.clock.move(timedelta(minutes=minutes))
            if what not in ("wait", "set"):
                await self._do(what, *more)

    async def _read_file(self) -> None:
        """Store the DAGs' file, as the DAG processor does."""
        dags = tuple(_parsed(dag_id, dag.spec) for dag_id, dag in self.dags.items())
        assets = tuple(
            ParsedAsset(one.name, one.uri, one.group, {}, "plays.py:1") for one in map(asset, THREE)
        )
        file = ParsedFile("plays.py", 0.1, dags=dags, assets=assets, aliases=ALIASES)
        async with self.database.transaction() as session:
            folder = merge([file], await read_incumbents(session), unusable=frozenset())
            await sync_folder(session, folder, {file.path: file}, now=NOW)

    async def _do(self, what: str, who: Any, *more: Any) -> None:
        match what:
            case "emit":
                await self._emit(who, *more)
            case "schedule":
                await self._schedule(who)
            case "clean":
                await self._clean(timedelta(minutes=who))
            case "change":
                await self._change(self.dags[f"dag{who % len(self.dags)}"], *more)
            case _:
                dag_id = f"dag{who % len(self.dags)}"
                await self._do_to_dag(what, dag_id, self.dags[dag_id], *more)

    async def _emit(self, name: str, keys: Sequence[str | None], alias: str | None) -> None:
        alias_ids = () if alias is None else (ALIASES.index(alias) + 1,)
        asset_id = THREE.index(name) + 1
        events = [NewAssetEvent(asset_id, partition_key=key, alias_ids=alias_ids) for key in keys]
        async with self.database.transaction() as session:
            ids = await record_events(session, events)
            found = select(AssetEvent.timestamp).where(AssetEvent.id == ids[0])
            at = (await session.scalars(found)).one()
        if alias is not None:
            self.members[alias].add(name)
        for event, key in zip(ids, keys, strict=True):
            for dag in self.dags.values():
                dag.emit(ModelEvent(event, name, key, at), alias)

    async def _change(self, dag: ModelDag, spec: Spec) -> None:
        schedules = schedule_of(dag.spec), schedule_of(spec)
        is_mapped_anew = schedules[0] != schedules[1] or dag.spec.quiet != spec.quiet
        dag.change(spec, is_mapped_anew=is_mapped_anew)
        await self._read_file()

    async def _clean(self, age: timedelta) -> None:
        """Clean, and check that exactly the old runs that nothing needs are deleted."""
        async with self.database.reading() as session:
            before = await database_now(session) - age
            rows = list(await session.scalars(select(DagRun).order_by(DagRun.id)))
        gone = 0
        for dag_id, dag in self.dags.items():
            there = [run for run in dag.runs if not run.is_deleted]
            ours = [row for row in rows if row.dag_id == dag_id]
            for row, run in zip(ours, there, strict=True):
                is_old = row.queued_at < before and row.run_after < before
                run.is_deleted = is_old and not dag.is_needed(run)
                gone += run.is_deleted
        cleaned = await clean(
            self.database,
            TESTER,
            Limits().with_events_and_runs(before),
            ack_timeout=timedelta(minutes=5),
        )
        assert cleaned.runs == gone, self.dags
        await self._compare()

    async def _do_to_dag(self, what: str, dag_id: str, dag: ModelDag, *more: str) -> None:
        async with self.database.transaction() as session:
            match what:
                case "pause" | "unpause":
                    dag.is_paused = what == "pause"
                    await set_paused(session, dag_id, paused=dag.is_paused)
                case "end" | "fail":
                    state = "success" if what == "end" else "failed"
                    dag.end(state)
                    of_dag = (DagRun.dag_id == dag_id, DagRun.state == "queued")
                    await session.execute(update(DagRun).where(*of_dag).values(state=state))
                case "remap":
                    dag.remap()
                    await return_to_queue(session, [dag_id])
                case "delete":
                    dag.delete(more[0])
                    await delete_queued_events(session, TESTER, dag=dag_id, asset=more[0])
                case _:
                    raise AssertionError(f"the plays draw an unknown step: {what}")

    async def _schedule(self, schedulers: int) -> None:
        """Let schedulers create the due runs side by side, and compare the runs with the model."""
        await self._compare_explained()
        async with anyio.create_task_group() as tasks:
            for scheduler in self.schedulers[:schedulers]:
                tasks.start_soon(scheduler.run_once)
        async with self.database.reading() as session:
            now = await database_now(session)
        for dag in self.dags.values():
            dag.settle(now)
        await self._compare()

    async def _compare_explained(self) -> None:
        """Compare the answer of `why-not` for each DAG with the model's next runs."""
        for dag_id, dag in self.dags.items():
            async with self.database.reading() as session:
                now = await database_now(session)
                told = await why_not(session, dag_id)
            settled, looked = deepcopy(dag), deepcopy(dag)
            settled.settle(now)
            looked.look(now)
            assert told.runs_due == len(settled.runs) - len(dag.runs), (told, dag)
            waits = {key: state.due_at for key, state in looked.keys.items() if state.waits}
            assert {one.partition_key for one in told.partitions} == waits.keys(), (told, dag)
            for one in told.partitions:
                due_at = waits[one.partition_key] or NEVER
                assert abs((one.due_at or NEVER) - due_at) <= self.clock.accuracy, (one, dag)

    async def _compare(self) -> None:
        async with self.database.reading() as session:
            rows = list(await session.scalars(select(DagRun).order_by(DagRun.id)))
            shares = list(await session.scalars(select(DagPartitionEvent)))
            parts = list(await session.scalars(select(DagPartitionPart)))
            keys = list(await session.scalars(select(DagPartition)))
            queued = select(QueuedAssetEvent).where(QueuedAssetEvent.run_pk.is_(None))
            queue = list(await session.scalars(queued))
        for dag_id, dag in self.dags.items():
            ours = [share for share in shares if share.dag_id == dag_id]
            taken: dict[int | None, set[tuple[str, int]]] = {}
            for share in ours:
                event = (share.partition_key, share.asset_event_id)
                taken.setdefault(share.run_pk, set()).add(event)
            made = []
            for row in (row for row in rows if row.dag_id == dag_id):
                events = taken.pop(row.id, set())
                assert {key for key, _ in events} == {row.partition_key}, (dag_id, dag)
                made.append((row.partition_key, frozenset(one for _, one in events), row.state))
            left = [one for one in dag.runs if not one.is_deleted]
            assert made == [(one.key, one.events, one.state) for one in left], (dag_id, dag)
            waits = {(key, event) for key, state in dag.keys.items() for event in state.waits}
            assert taken.pop(None, set()) == waits, (dag_id, dag)
            assert not taken, (dag_id, dag)
            queued = sorted(one.asset_event_id for one in queue if one.dag_id == dag_id)
            assert queued == sorted(event.id for event in dag.queue), (dag_id, dag)
            there = {one.partition_key for one in parts if one.dag_id == dag_id}
            assert there == {key for key, _ in waits}, (dag_id, dag)
            self._check_each_is_once(dag, ours)
            self._check_moments(dag, [one for one in keys if one.dag_id == dag_id])

    def _check_each_is_once(self, dag: ModelDag, shares: Sequence[DagPartitionEvent]) -> None:
        """Check the rows of events that have left the queue: one for each event and each key that the event maps to.

        The rows that a deleted run took are gone.
        """
        stored = [(share.partition_key, share.asset_event_id) for share in shares]
        assert len(stored) == len(set(stored))
        queued = {event.id for event in dag.queue}
        gone = {(run.key, event) for run in dag.runs if run.is_deleted for event in run.events}
        assert {one for one in dag.owed if one[1] not in queued} - gone == {
            one for one in stored if one[1] not in queued
        }, dag

    def _check_moments(self, dag: ModelDag, keys: Sequence[DagPartition]) -> None:
        """Compare when keys are due with the model, within the clock's accuracy."""
        for one in keys:
            due_at = dag.keys[one.partition_key].due_at or NEVER
            assert abs(one.due_at - due_at) <= self.clock.accuracy, (one.partition_key, dag)


def _parsed(dag_id: str, spec: Spec) -> ParsedDag:
    return ParsedDag(
        dag_id,
        "plays.py:2",
        None,
        [],
        schedule_of(spec),
        spec.max_active_runs,
        None,
        {},
        [],
        is_paused_upon_creation=False,
        min_run_gap=None if spec.gap is None else spec.gap.total_seconds(),
        quiet_period=None if spec.quiet is None else spec.quiet.total_seconds(),
        depends_on_past=spec.depends_on_past,
    )
