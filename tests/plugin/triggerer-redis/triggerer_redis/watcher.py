"""Fires for entries of Redis streams."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from triggerer.abc import DeliveryFacts
from triggerer.pluginkit.arguments import (
    choice_argument,
    default_group,
    optional_text_argument,
    text_argument,
    texts_argument,
)
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    attributes,
    in_position,
    timestamp_ms,
)
from triggerer_redis.checking import check_streams, describe_delivery
from triggerer_redis.producer import RedisSharedStreamProducer
from triggerer_redis.settings import RedisSettings


class RedisStreamEventTrigger(MessageTrigger):
    """Fires for each entry that meets `match`; watchers of the same streams share one reader.

    Args:
        streams: One or more streams of one server.
        group: The consumer group that keeps the position. No other program may use it. None: the name is derived from
            the streams and `value_field`.
        start: "earliest" or "latest", the place to begin in a stream that does not have the group yet.
        value_field: The field that is decoded. The other fields are attributes (`@fields.name`).
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position("stream", "id"),
        "fields": attributes,
        "timestamp": timestamp_ms,
    }

    def __init__(
        self,
        streams: str | Sequence[str],
        *,
        group: str | None = None,
        start: str = "earliest",
        value_field: str = "value",
        connection: str = "redis",
        **arguments: Any,
    ) -> None:
        self.streams = texts_argument(streams, "streams", each="the name of a stream")
        self.group = optional_text_argument(group, "group")
        self.start = choice_argument(start, "start", "earliest", "latest")
        self.value_field = text_argument(value_field, "value_field")
        super().__init__(connection=connection, **arguments)

    @property
    def group_id(self) -> str:
        """The group's name. Its default depends on the streams and `value_field`."""
        return self.group or default_group(self.streams, self.value_field)

    def shared_stream_key(self) -> Hashable:
        return ("redis", self.connection, tuple(self.streams), self.group_id, self.value_field)

    def make_producer(self) -> RedisSharedStreamProducer:
        return RedisSharedStreamProducer(
            self.streams,
            group=self.group_id,
            settings=RedisSettings.load(self.connection),
            start=self.start,
            value_field=self.value_field,
        )

    async def check_source(self) -> None:
        await check_streams(RedisSettings.load(self.connection), self.streams)

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        return await describe_delivery(RedisSettings.load(self.connection), ask=ask)
