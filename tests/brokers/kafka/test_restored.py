"""The service notices that a restored database is older than the broker's positions, and skips no message."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import OffsetAndMetadata
from sqlalchemy import func, select

from tests.actors import TESTER
from tests.hosting.test_host import eventually, running, watchers
from tests.services.brokers.kafka import KafkaServer
from tests.store.seeding import NOW
from triggerer import abc
from triggerer.hosting import TriggerHost
from triggerer.hosting.factory import TriggerFactory
from triggerer.hosting.host import HostSettings
from triggerer.operations.restoring.marking import mark_restored
from triggerer.plugins import trigger_digest
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import Asset, AssetEvent, Stream, Trigger, Watcher
from triggerer.store.watchers.position_writer import PositionWriter
from triggerer.streams import RuntimeContext
from watchers.kafka import KafkaEventTrigger

_HALF = 50


class Scene:
    """A service with two watchers of a topic, on a SQLite file, and a copy of the file."""

    def __init__(self, kafka: KafkaServer, url: str) -> None:
        self.kafka = kafka
        self.topic = f"restored-{uuid.uuid4().hex[:10]}"
        kafka.create_topic(self.topic, 2)
        self.group = KafkaEventTrigger(self.topic).group
        self.url = url
        self._file = Path(url.partition("///")[2])

    def produce(self, number: int) -> None:
        self.kafka.produce(self.topic, [str(value) for value in range(number)])

    def back_up(self) -> datetime:
        now = datetime.now(UTC)
        with (
            closing(sqlite3.connect(self._file)) as source,
            closing(sqlite3.connect(f"{self._file}.copy")) as copy,
        ):
            source.backup(copy)
        return now

    def restore(self) -> None:
        for end in ("-wal", "-shm"):
            Path(f"{self._file}{end}").unlink(missing_ok=True)
        shutil.copy(f"{self._file}.copy", self._file)

    async def declare(self, **arguments: str) -> None:
        async with open_database(self.url) as database, database.transaction() as session:
            session.add(Stream(digest="stream", key="stream"))
            kwargs = {"topics": [self.topic], **arguments}
            digest = trigger_digest("Kafka", kwargs)
            trigger = Trigger(
                digest=digest, classpath="Kafka", kwargs=kwargs, stream_digest="stream"
            )
            session.add(trigger)
            await session.flush()
            for number, name in enumerate(("one", "other"), 1):
                session.add(Asset(id=number, name=name, uri=f"x-test://{name}", created_at=NOW))
                await session.flush()
                session.add(
                    Watcher(
                        asset_id=number,
                        name="w",
                        trigger_id=trigger.id,
                        path="f.py",
                        updated_at=NOW,
                    )
                )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Database]:
        async with open_database(self.url) as database, anyio.create_task_group() as background:
            recorder = EventRecorder(database, on_fenced=lambda fence: host.mark_fenced(fence))  # noqa: PLW0108
            positions = PositionWriter(database, on_fenced=lambda _: None)
            background.start_soon(positions.run)
            host = TriggerHost(
                database,
                instance_id="me",
                factory=TriggerFactory({"Kafka": KafkaEventTrigger}.__getitem__),
                runtime=RuntimeContext(recorder, positions, restart_first=0.2, restart_longest=0.2),
                settings=HostSettings(heartbeat=timedelta(seconds=0.2), drain=timedelta(seconds=5)),
                takes_over_at_once=True,
                writers=[positions],
            )
            async with running(host, recorder):
                yield database
            background.cancel_scope.cancel()

    async def until_stored(self, database: Database, number: int) -> None:
        """Wait until each watcher has this number of events, and the broker's positions are past their messages."""

        async def are_stored() -> bool:
            return await self.count(database) == 2 * number

        await eventually(are_stored)

        async def are_committed() -> bool:
            found = await anyio.to_thread.run_sync(
                self.kafka.committed_offsets, self.group, self.topic
            )
            return sum(found.values()) == number

        await eventually(are_committed)

    @staticmethod
    async def count(database: Database) -> int:
        async with database.reading() as session:
            return await session.scalar(select(func.count()).select_from(AssetEvent)) or 0

    @staticmethod
    async def until_marked_after(database: Database, instant: datetime) -> None:
        async def is_marked() -> bool:
            async with database.reading() as session:
                at = await session.scalar(select(Stream.marked_at))
            return at is not None and at > instant

        await eventually(is_marked)

    async def lose_half(self) -> datetime:
        """Store all messages, and advance the broker past them. Then restore a backup with the first half of the
        messages, and return the time of the backup."""
        await self.declare()
        async with self.serving() as database:
            self.produce(_HALF)
            await self.until_stored(database, _HALF)
            await self.until_marked_after(database, datetime.now(UTC))
            backup_time = self.back_up()
            await self.until_marked_after(database, datetime.now(UTC))
            self.produce(_HALF)
            await self.until_stored(database, 2 * _HALF)
        self.restore()
        return backup_time

    async def until_refused(self, database: Database) -> None:
        async def are_failing() -> bool:
            shown = (await watchers(database)).values()
            return all(
                state == "failing" and "run `triggerer db restored --backup-time 2" in str(error)
                for state, error, _ in shown
            )

        await eventually(are_failing)


@pytest.fixture
def scene(kafka_server: KafkaServer, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Scene:
    def resolve(_: str) -> Mapping[str, Any]:
        return {"bootstrap_servers": kafka_server.bootstrap_servers}

    monkeypatch.setattr(abc, "_resolve_connection", resolve)
    return Scene(kafka_server, sqlite_url)


async def test_a_restored_database_is_refused_and_the_command_brings_each_message_back_once(
    scene: Scene,
) -> None:
    backup_time = await scene.lose_half()
    # Publish more messages while no service runs. They must come after the messages that are read again.
    scene.produce(10)
    for _ in range(2):
        async with scene.serving() as database:
            await scene.until_refused(database)
            # Wait for heartbeats: they must not raise the database's mark to the broker's mark.
            await anyio.sleep(1)
            assert await scene.count(database) == 2 * _HALF
    for _ in range(2):
        async with open_database(scene.url) as database:
            await mark_restored(database, TESTER, backup_time, margin=timedelta(hours=1))
    async with scene.serving() as database:
        await scene.until_stored(database, 2 * _HALF + 10)
        async with database.reading() as session:
            query = select(AssetEvent.asset_id, AssetEvent.idempotency_key).order_by(AssetEvent.id)
            rows = [(asset, str(key)) for asset, key in await session.execute(query)]
    assert set(Counter(rows).values()) == {1}
    places: dict[tuple[int, str], list[int]] = {}
    for asset, key in rows:
        lane, _, offset = key.rpartition("/")
        places.setdefault((asset, lane), []).append(int(offset))
    assert all(offsets == sorted(offsets) for offsets in places.values()), "not in order"


async def test_positions_that_an_operator_sets_again_are_accepted(scene: Scene) -> None:
    await scene.lose_half()
    async with scene.serving() as database:
        await scene.until_refused(database)
    # Commit the offsets without our metadata, like `kafka-consumer-groups --reset-offsets --to-current`.
    await set_offsets(scene, scene.kafka.committed_offsets(scene.group, scene.topic))
    async with scene.serving() as database:
        scene.produce(10)

        async def are_stored() -> bool:
            return await scene.count(database) == 2 * (_HALF + 10)

        await eventually(are_stored)


async def test_a_stream_whose_commits_expired_warns(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka deletes the commits of a group that had no consumer for `offsets.retention.minutes`."""

    async def commits_reach(count: int) -> None:
        async def are_committed() -> bool:
            commits = await anyio.to_thread.run_sync(
                scene.kafka.committed_offsets, scene.group, scene.topic
            )
            return sum(commits.values()) == count

        await eventually(are_committed)

    scene.produce(3)
    await scene.declare(start="latest")
    async with scene.serving() as database:
        await scene.until_marked_after(database, datetime.now(UTC))
        scene.produce(5)
        await commits_reach(8)
    assert "offsets.retention.minutes" not in caplog.text
    scene.kafka.delete_group(scene.group)
    scene.produce(7)
    async with scene.serving():
        await commits_reach(15)
    assert "offsets.retention.minutes" in caplog.text


async def set_offsets(scene: Scene, offsets: Mapping[int, int]) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=scene.kafka.bootstrap_servers,
        group_id=scene.group,
        enable_auto_commit=False,
    )
    await consumer.start()
    places = {TopicPartition(scene.topic, number): offset for number, offset in offsets.items()}
    consumer.assign(list(places))
    await consumer.commit(
        {place: OffsetAndMetadata(offset, "") for place, offset in places.items()}
    )
    await consumer.stop()
