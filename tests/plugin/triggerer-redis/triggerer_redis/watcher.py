"""Fires for entries of Redis streams."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from redis.asyncio import Redis

from triggerer.abc import BrokerMessage, DeliveryFacts, Finding
from triggerer.errors import BrokerRefused, BrokerUnavailable, DagError
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    text_argument,
    texts_of,
    timestamp_ms,
)
from triggerer_redis.producer import RedisSharedStreamProducer
from triggerer_redis.settings import RedisSettings, ask


class RedisStreamEventTrigger(MessageTrigger):
    """Fires for each entry that meets `match`; watchers of the same streams share one reader.

    Args:
        streams: One or several, of one server.
        group: The consumer group in which the position is kept; None: one that is named after the streams. Nobody else
            may read with it.
        start: "earliest" or "latest": where a stream is begun that has no such group yet.
        value_field: The field that is decoded; the others are attributes (`@fields.name`).
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        "stream": lambda message: message.position["stream"],
        "id": lambda message: message.position["id"],
        "fields": lambda message: texts_of(message.attributes),
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
        names = [streams] if isinstance(streams, str) else list(streams)
        if not names:
            raise DagError("streams is empty")
        if start not in ("earliest", "latest"):
            raise DagError(f'start is "earliest" or "latest", and not {start!r}')
        self.streams = sorted({text_argument(name, "streams") for name in names})
        self.group = None if group is None else text_argument(group, "group")
        self.start = start
        self.value_field = text_argument(value_field, "value_field")
        super().__init__(connection=connection, **arguments)

    def source_arguments(self) -> dict[str, Any]:
        return {
            "streams": self.streams,
            "group": self.group,
            "start": self.start,
            "value_field": self.value_field,
        }

    def shared_stream_key(self) -> Hashable:
        return ("redis", self.connection, tuple(self.streams), self.group_id, self.value_field)

    @property
    def group_id(self) -> str:
        """The group's name. What reads differently has another position, and so another default."""
        if self.group is not None:
            return self.group
        identity = json.dumps([self.streams, self.value_field]).encode()
        return f"triggerer-{hashlib.sha256(identity).hexdigest()[:12]}"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> RedisSharedStreamProducer:
        trigger = cls(**kwargs)
        return RedisSharedStreamProducer(
            trigger.streams,
            group=trigger.group_id,
            settings=RedisSettings.load(trigger.connection),
            start=trigger.start,
            value_field=trigger.value_field,
        )

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        return {
            "value": value,
            "stream": message.position["stream"],
            "id": message.position["id"],
            "fields": texts_of(message.attributes),
            "timestamp": timestamp_ms(message),
        }

    async def check_source(self) -> None:
        settings = RedisSettings.load(self.connection)
        # As in the producer: its stubs cannot tell bytes from text.
        client: Any = settings.connect()
        try:
            for stream in self.streams:
                kind = await ask(client.type(stream), f"look at {stream} at {settings.server}")
                if kind == b"none":
                    raise BrokerUnavailable(
                        f"there is no stream {stream} at {settings.server} yet",
                        hint="It is made, empty, when the service starts.",
                    )
                if kind != b"stream":
                    raise BrokerRefused(
                        f"{stream} at {settings.server} is no stream, but a {kind.decode()}"
                    )
        finally:
            await client.aclose()

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        settings = RedisSettings.load(self.connection)
        limit = settings.delivery_policy().max_deliveries
        return DeliveryFacts(
            is_acknowledged=True,
            because="the group's position is moved after the events are durable",
            key="stream, its incarnation and the entry's id",
            drops_after=limit if settings.dead_letters else None,
            has_dead_letters=settings.dead_letters,
            findings=await _look_for_findings(settings) if ask else (),
        )


async def _look_for_findings(settings: RedisSettings) -> tuple[Finding, ...]:
    """What the server's settings mean for what it holds."""
    client: Redis = settings.connect()
    findings = []
    try:
        what = f"ask for the settings of {settings.server}"
        try:
            found = await ask(client.config_get("appendonly", "maxmemory-policy"), what)
        except BrokerRefused:
            return (Finding("Redis does not say whether it keeps entries on disk"),)
        if found.get("appendonly") != "yes":
            findings.append(
                Finding(
                    "Redis keeps no append-only file: a crash loses entries that nobody has read",
                    hint="Set appendonly yes.",
                )
            )
        if str(found.get("maxmemory-policy", "")).startswith("allkeys"):
            findings.append(
                Finding(
                    "Redis may evict the stream when memory is short",
                    hint="Set maxmemory-policy to noeviction or volatile-lru.",
                )
            )
    finally:
        await client.aclose()
    return tuple(findings)
