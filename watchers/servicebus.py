"""Asset events from the messages of Azure Service Bus."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from triggerer.abc import BrokerMessage, DeliveryFacts, SourceLag
from triggerer.errors import DagError
from triggerer.pluginkit.arguments import describe_source, optional_text_argument, text_argument
from triggerer.pluginkit.decoding import text_of
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    attributes,
    deliveries,
    in_position,
    texts_of,
    timestamp_ms,
)

if TYPE_CHECKING:
    from producers.servicebus import ServiceBusSharedStreamProducer
    from producers.servicebus.entity import EntityPath
    from producers.servicebus.settings import ServiceBusSettings

_SUBSCRIPTION = re.compile(r"(.+)/subscriptions/([^/]+)", re.IGNORECASE)


def _of_path(path: str) -> tuple[str | None, str | None, str | None]:
    """Return the queue, the topic and the subscription in the path of an entity."""
    found = _SUBSCRIPTION.fullmatch(path)
    return (path, None, None) if found is None else (None, found[1], found[2])


class ServiceBusEventTrigger(MessageTrigger):
    """Fires for each message of a queue, or of a subscription of a topic, that meets `match`.

    Watchers with equal queue, topic, subscription and connection share a stream. When the stream is opened, it finds
    out whether the queue or the subscription has sessions.

    Args:
        queue: The name of a queue, or the path of a subscription: `<topic>/subscriptions/<subscription>`.
        topic, subscription: The names of a topic and of one of its subscriptions, instead of `queue`.
        connection: The section `[connections.<connection>]` of the configuration.
        match, decode, extra, partition_key: See `MessageTrigger`. The default `extra` has `value`, `message_id`,
            `entity`, `session_id`, `sequence_number`, `properties` and `timestamp`. The values of `properties` are
            strings. The `timestamp` is when Service Bus stored the message, in milliseconds.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position(
            "entity",
            "message_id",
            "session_id",
            "sequence_number",
            "subject",
            "correlation_id",
            "content_type",
        ),
        "properties": attributes,
        "timestamp": timestamp_ms,
        "deliveries": deliveries,
    }

    def __init__(
        self,
        queue: str | None = None,
        *,
        topic: str | None = None,
        subscription: str | None = None,
        connection: str = "servicebus",
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        if queue is not None and topic is None and subscription is None:
            queue, topic, subscription = _of_path(text_argument(queue, "queue"))
        self.queue = optional_text_argument(queue, "queue")
        self.topic = optional_text_argument(topic, "topic")
        self.subscription = optional_text_argument(subscription, "subscription")
        if any("://" in name for name in (self.queue, self.topic, self.subscription) if name):
            # Do not show the value: it may be a connection string with its key.
            raise DagError(
                "the name of an entity has :// in it",
                hint="a connection_string, or the namespace, belongs in [connections.servicebus]",
            )
        if (self.queue is None) == (self.topic is None):
            raise DagError("give either queue, or topic and subscription")
        if (self.topic is None) != (self.subscription is None):
            raise DagError(
                "topic and subscription go together: messages are read from a subscription"
            )
        super().__init__(
            connection=connection,
            match=match,
            decode=decode,
            extra=extra,
            partition_key=partition_key,
        )

    def shared_stream_key(self) -> Hashable:
        # Service Bus ignores case in names, so equal keys need one spelling.
        names = [name.lower() for name in (self.queue, self.topic, self.subscription) if name]
        path = "/".join(names)
        if self.queue is not None and "/" in path:
            # A queue's name may contain slashes. The prefix distinguishes its key from the key of a topic's
            # subscription.
            path = f"queue:{path}"
        return ("servicebus", self.connection, path)

    def describe_stream(self) -> str:
        entity = self.queue or f"{self.topic}/{self.subscription}"
        # Lower case, as in the key: Service Bus ignores case in names.
        return describe_source("servicebus", entity.lower(), connection=self.connection)

    async def check_source(self) -> None:
        # Imported here and below: parsing a DAG file needs no client library.
        from producers.servicebus import check_entity

        await check_entity(self._settings(), self._entity())

    async def measure_lag(self) -> SourceLag:
        from producers.servicebus.lag import measure_lag

        return await measure_lag(self._settings(), self._entity())

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        from producers.servicebus import describe_delivery

        return await describe_delivery(self._settings(), self._entity(), ask=ask)

    def make_producer(self) -> ServiceBusSharedStreamProducer:
        from producers.servicebus import ServiceBusSharedStreamProducer

        return ServiceBusSharedStreamProducer(self._entity(), settings=self._settings())

    def _entity(self) -> EntityPath:
        from producers.servicebus.entity import EntityPath

        return EntityPath(self.queue or self.topic or "", self.subscription)

    def _settings(self) -> ServiceBusSettings:
        from producers.servicebus.settings import ServiceBusSettings

        return ServiceBusSettings.load(self.connection)

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        position = message.position
        return {
            "value": value,
            "message_id": text_of(position["message_id"]),
            "entity": position["entity"],
            "session_id": text_of(position["session_id"]),
            "sequence_number": position["sequence_number"],
            "properties": texts_of(message.attributes),
            "timestamp": timestamp_ms(message),
        }
