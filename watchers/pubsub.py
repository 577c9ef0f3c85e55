"""Asset events from the messages of Google Cloud Pub/Sub subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from triggerer.abc import BrokerMessage, DeliveryFacts, SourceLag, get_connection
from triggerer.errors import DagError
from triggerer.pluginkit.arguments import describe_source
from triggerer.pluginkit.decoding import text_of
from triggerer.pluginkit.message_trigger import (
    Attribute,
    MessageTrigger,
    attributes,
    deliveries,
    in_position,
    text_argument,
    texts_of,
    timestamp_ms,
)

if TYPE_CHECKING:
    from producers.pubsub import PubSubSharedStreamProducer
    from producers.pubsub.settings import PubSubSettings


class PubSubEventTrigger(MessageTrigger):
    """Fires for each message of a subscription that meets `match`.

    Watchers with the same subscription and connection share one stream. Write the subscription in
    the same form in all watchers: as its name or as its path. Otherwise two streams would read the
    subscription, and Pub/Sub would send each message to only one stream. If the connection states
    its `project`, the name and the path in this project share one stream.

    Args:
        subscription: A name in the connection's project, or a path: `projects/<project>/subscriptions/<name>`.
        connection: The section `[connections.<connection>]` of the configuration.
        match, decode, extra, partition_key: See `MessageTrigger`. The default `extra` has `value`, `message_id`,
            `subscription`, `ordering_key`, `attributes` and `timestamp`. The `timestamp` is when the message was
            published, in milliseconds.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position("message_id", "subscription"),
        "ordering_key": lambda message: text_of(message.key),
        "attributes": attributes,
        "timestamp": timestamp_ms,
        "deliveries": deliveries,
    }

    def __init__(
        self,
        subscription: str,
        *,
        connection: str = "pubsub",
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.subscription = _subscription(subscription)
        super().__init__(
            connection=connection,
            match=match,
            decode=decode,
            extra=extra,
            partition_key=partition_key,
        )

    def shared_stream_key(self) -> Hashable:
        """Return the stream key.

        A path (`projects/PROJECT/subscriptions/NAME`) is shortened to NAME if PROJECT is the connection's project. All
        processes must compute equal keys, so a process that cannot read the connection raises an error for a path.

        Raises:
            ConfigurationError: The subscription is a path, and the connection cannot be read.
        """
        return ("pubsub", self.connection, self._short_name())

    def describe_stream(self) -> str:
        return describe_source("pubsub", self._short_name(), connection=self.connection)

    def _short_name(self) -> str:
        """The subscription without the connection's own project, so that name and path give one stream."""
        match self.subscription.split("/"):
            case ["projects", project, "subscriptions", name] if project == get_connection(
                self.connection
            ).get("project"):
                return name
        return self.subscription

    async def check_source(self) -> None:
        # Imported here and below: parsing a DAG file needs no client library.
        from producers.pubsub import check_subscription

        await check_subscription(self._settings(), self.subscription)

    async def measure_lag(self) -> SourceLag:
        return SourceLag(
            None, note="Pub/Sub reports lag to Cloud Monitoring only: num_undelivered_messages"
        )

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        from producers.pubsub import describe_delivery

        return await describe_delivery(self._settings(), self.subscription, ask=ask)

    def make_producer(self) -> PubSubSharedStreamProducer:
        from producers.pubsub import PubSubSharedStreamProducer

        return PubSubSharedStreamProducer(self.subscription, settings=self._settings())

    def _settings(self) -> PubSubSettings:
        from producers.pubsub.settings import PubSubSettings

        return PubSubSettings.load(self.connection)

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        as_extra: Callable[[Any], dict[str, Any]] | None = getattr(message, "as_extra", None)
        if as_extra is not None:
            # Messages from the producer have `as_extra`, which returns the same result as the code below in a third of
            # the time.
            return as_extra(value)
        position = message.position
        return {
            "value": value,
            "message_id": position["message_id"],
            "subscription": position["subscription"],
            "ordering_key": text_of(message.key),
            "attributes": texts_of(message.attributes),
            "timestamp": timestamp_ms(message),
        }


def _subscription(value: Any) -> str:
    subscription = text_argument(value, "subscription")
    match subscription.split("/"):
        case [_]:
            return subscription
        case ["projects", project, "subscriptions", name] if project and name:
            return subscription
        case ["projects", _, "topics", _]:
            raise DagError(
                f"{subscription!r} is a topic, and messages are read from a subscription",
                hint="gcloud pubsub subscriptions list shows all subscriptions; create a subscription of the topic"
                " if there is none",
            )
    raise DagError(
        f"{subscription!r} names no subscription",
        hint="write its name in the connection's project, or projects/PROJECT/subscriptions/NAME",
    )
