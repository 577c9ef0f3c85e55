"""Fires for the messages of a queue in a SQLite file."""

from collections.abc import Hashable, Mapping
from datetime import timedelta
from typing import Any, ClassVar

from triggerer.abc import DeliveryFacts
from triggerer.pluginkit.arguments import describe_source, text_argument
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    in_position,
    timestamp_ms,
)
from triggerer_sqlite.producer import SqliteQueueProducer, SqliteSettings, ask
from triggerer_sqlite.table import Table


class SqliteQueueEventTrigger(MessageTrigger):
    """Fires for each message that meets `match`; watchers of one queue share one reader."""

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position("queue", "id"),
        "timestamp": timestamp_ms,
    }

    def __init__(self, queue: str, *, connection: str = "sqlite", **arguments: Any) -> None:
        self.queue = text_argument(queue, "queue")
        super().__init__(connection=connection, **arguments)

    def shared_stream_key(self) -> Hashable:
        return ("sqlite", self.connection, self.queue)

    def describe_stream(self) -> str:
        return describe_source("sqlite", self.queue, connection=self.connection)

    def make_producer(self) -> SqliteQueueProducer:
        return SqliteQueueProducer(self.queue, SqliteSettings.load(self.connection))

    async def check_source(self) -> None:
        table = Table(SqliteSettings.load(self.connection).path, self.queue)
        await ask(table.counts, f"look at queue {self.queue}")

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        # All facts follow from the settings, so the source is not asked.
        settings = SqliteSettings.load(self.connection)
        return DeliveryFacts(
            is_acknowledged=True,
            because="a message is deleted after its events are durable",
            key="the message's id",
            redelivers_after=timedelta(seconds=settings.lease_s),
            is_renewed=True,
            drops_after=settings.delivery_policy().max_deliveries,
            has_dead_letters=True,
        )
