"""Rows for tests of the store, queries of these tests, and an event that records its outcomes."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
from sqlalchemy import func, select

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.store.database.transactions import Database
from triggerer.store.events.emit import NewAssetEvent, record_events
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import (
    Asset,
    AssetAlias,
    AssetEvent,
    Dag,
    DagRun,
    DagScheduleAlias,
    DagScheduleAsset,
    QueuedAssetEvent,
    Stream,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FENCE = Fence("stream", "me", 3)
SOURCE = EventSource((WatcherRef(7, 1),), None)


def asset_json(name: str) -> dict[str, Any]:
    return {"asset": {"name": name, "uri": f"x-test://{name}"}}


async def add_asset(database: Database, asset_id: int, name: str) -> None:
    async with database.transaction() as session:
        session.add(Asset(id=asset_id, name=name, uri=f"x-test://{name}", created_at=NOW))


async def add_alias(database: Database, alias_id: int, name: str) -> None:
    async with database.transaction() as session:
        session.add(AssetAlias(id=alias_id, name=name))


async def add_dag(
    database: Database,
    dag_id: str,
    schedule: dict[str, Any] | None,
    *,
    assets: Sequence[int] = (),
    aliases: Sequence[int] = (),
    **columns: Any,
) -> None:
    async with database.transaction() as session:
        session.add(
            Dag(dag_id=dag_id, path=f"{dag_id}.py", schedule=schedule, updated_at=NOW, **columns)
        )
        await session.flush()
        for asset_id in assets:
            session.add(DagScheduleAsset(dag_id=dag_id, asset_id=asset_id))
        for alias_id in aliases:
            session.add(DagScheduleAlias(dag_id=dag_id, alias_id=alias_id))


async def add_stream(database: Database, fence: Fence = FENCE) -> None:
    async with database.transaction() as session:
        session.add(
            Stream(
                digest=fence.stream_digest,
                key=fence.stream_digest,
                owner=fence.owner,
                epoch=fence.epoch,
            )
        )


async def emit(database: Database, asset_id: int, count: int = 1) -> list[int]:
    async with database.transaction() as session:
        return await record_events(session, [NewAssetEvent(asset_id) for _ in range(count)])


async def events_in(database: Database) -> list[AssetEvent]:
    async with database.reading() as session:
        return list(await session.scalars(select(AssetEvent).order_by(AssetEvent.id)))


async def count_events(database: Database) -> int:
    async with database.reading() as session:
        return await session.scalar(select(func.count()).select_from(AssetEvent)) or 0


async def queue_of(database: Database, dag_id: str) -> list[tuple[int, int | None]]:
    """Return (event id, run id) of each entry in the DAG's queue, by event id. A waiting event has no run (None)."""
    async with database.reading() as session:
        rows = await session.execute(
            select(QueuedAssetEvent.asset_event_id, QueuedAssetEvent.run_pk)
            .where(QueuedAssetEvent.dag_id == dag_id)
            .order_by(QueuedAssetEvent.asset_event_id)
        )
        return [(event, run) for event, run in rows]


async def runs_of(database: Database, dag_id: str) -> list[DagRun]:
    async with database.reading() as session:
        found = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id)
        return list(await session.scalars(found))


@dataclass
class Event:
    """A pending event, as the runtime would submit it."""

    payload: Any
    idempotency_key: str | None = None
    ordinal: int = 0
    source: EventSource = SOURCE
    partition_key: Any = None
    published_at: datetime | None = None
    outcomes: list[Exception | None] = field(default_factory=list)
    done: anyio.Event = field(default_factory=anyio.Event)

    def submit_to(self, recorder: EventRecorder) -> None:
        recorder.submit_nowait(self, self, self.source, self.idempotency_key, self.ordinal)

    def complete(self, error: Exception | None) -> None:
        self.outcomes.append(error)
        self.done.set()

    @property
    def error(self) -> Exception | None:
        """The error of the event's only answer, or None. Raises ValueError unless there is exactly one answer."""
        (outcome,) = self.outcomes
        return outcome


@asynccontextmanager
async def recording(database: Database, **options: Any) -> AsyncIterator[EventRecorder]:
    """Run a recorder until the block ends. Lost fences are ignored, unless the options have `on_fenced`."""
    options.setdefault("on_fenced", lambda fence: None)
    recorder = EventRecorder(database, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        yield recorder
        tasks.cancel_scope.cancel()


async def record(recorder: EventRecorder, *events: Event, timeout: float = 60) -> None:
    """Submit the events, and wait until the recorder has answered all of them."""
    for event in events:
        event.submit_to(recorder)
    with anyio.fail_after(timeout):
        await recorder.drained()


async def until(condition: Callable[[], bool], *, timeout: float = 60) -> None:
    """Poll until the condition is true; raise TimeoutError after this number of seconds."""
    with anyio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110 (there is no event to wait for)
            await anyio.sleep(0.01)
