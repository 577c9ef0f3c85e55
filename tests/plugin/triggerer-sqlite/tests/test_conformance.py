from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from triggerer_sqlite.producer import SqliteQueueProducer, SqliteSettings
from triggerer_sqlite.table import Table
from triggerer_sqlite.watcher import SqliteQueueEventTrigger

from triggerer.abc import BrokerMessage, install_connections
from triggerer.testing import Feature, ProducerConformance, TriggerConformance


class TestSqliteQueue(ProducerConformance):
    features = frozenset(
        {
            Feature.REDELIVERY,
            Feature.DEAD_LETTER,
            Feature.LOCK_RENEWAL,
            Feature.IDEMPOTENCY,
            Feature.RECREATION,
            Feature.SIZES,
            Feature.DUMP,
            Feature.QUEUE,
        }
    )
    lock_s = 0.5

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "queues.db"

    async def setup(self) -> None:
        self.table = Table(str(self.path), "orders")
        self.table.create()
        self.published = 0

    async def recreate(self) -> None:
        self.path.unlink()
        await self.setup()

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        self.table.send([value.encode() for value in values])
        self.published += len(values)

    async def publish_unordered(self, values: Sequence[str]) -> None:
        await self.publish(values)

    async def new_producer(self) -> SqliteQueueProducer:
        settings = SqliteSettings(
            path=str(self.path),
            lease_s=self.lock_s,
            poll_s=0.01,
            max_deliveries=self.max_deliveries,
            redelivery_delay_s=0.01,
        )
        return SqliteQueueProducer("orders", settings)

    async def committed(self, lane: int = 0) -> int:
        waiting, _ = self.table.counts()
        return self.published - waiting

    async def dead_letters(self) -> list[str]:
        return [body.decode() for body in self.table.dead_letters()]

    def value_of(self, event: BrokerMessage) -> str:
        assert event.value is not None
        return event.value.decode()


class TestSqliteQueueEventTrigger(TriggerConformance):
    @pytest.fixture(autouse=True)
    def _connection(self) -> None:
        install_connections({"sqlite": {"path": "queues.db"}}.__getitem__)

    def new_trigger(self) -> SqliteQueueEventTrigger:
        return SqliteQueueEventTrigger("orders", match={"sku": "a"})

    def siblings(self) -> Sequence[SqliteQueueEventTrigger]:
        return [SqliteQueueEventTrigger("orders")]

    def strangers(self) -> Sequence[SqliteQueueEventTrigger]:
        return [SqliteQueueEventTrigger("returns", match={"sku": "a"})]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(message(b'{"sku": "a"}'), 1), (message(b'{"sku": "b"}'), 0), (message(b"\xff"), 0)]


def message(body: bytes) -> BrokerMessage:
    return BrokerMessage(body, position={"queue": "orders", "id": "1"})
