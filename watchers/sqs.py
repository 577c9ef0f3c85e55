"""Asset events from the messages of Amazon SQS queues."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from producers.sqs import SqsSharedStreamProducer
from producers.sqs.queue import identity, is_url
from triggerer.abc import BrokerMessage, DeliveryFacts, SourceLag, get_connection
from triggerer.errors import DagError
from triggerer.pluginkit.arguments import describe_source
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
    from producers.sqs.settings import SqsSettings


class SqsEventTrigger(MessageTrigger):
    """Fires for each message of a queue that meets `match`.

    Watchers with the same queue and connection share one stream. Only one stream should read a queue, because SQS
    delivers each message to only one receiver. `triggerer check` warns if two streams read one queue.

    So write the queue in the same form in all watchers: as its name or as its URL. If the connection sets the account
    (`account` or `role_arn`) and the region (`region` or `endpoint_url`), the name and the URL share one stream.

    Args:
        queue: The queue's name or URL.
        connection: The section `[connections.<connection>]` of the configuration.
        match, decode, extra, partition_key: See `MessageTrigger`. The default `extra` has `value`, `message_id`,
            `queue`, `group_id`, `sequence_number`, `attributes` and `timestamp`. The `group_id` and `sequence_number`
            are null if SQS sends none. The `timestamp` is when the message was sent, in milliseconds. A binary
            attribute is written as text, or as `base64:…`.
    Raises:
        DagError: An argument is not as described.
    """

    ATTRIBUTES: ClassVar[Mapping[str, Attribute]] = {
        **in_position("message_id", "queue", "group_id", "sequence_number"),
        "attributes": attributes,
        "timestamp": timestamp_ms,
        "deliveries": deliveries,
    }

    def __init__(
        self,
        queue: str,
        *,
        connection: str = "sqs",
        match: Mapping[str, Any] | str | None = None,
        decode: str | None = "json",
        extra: Mapping[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> None:
        self.queue = _queue(queue)
        super().__init__(
            connection=connection,
            match=match,
            decode=decode,
            extra=extra,
            partition_key=partition_key,
        )

    def shared_stream_key(self) -> Hashable:
        """Return the stream key, with the queue's `identity`.

        All processes must compute equal keys, and the identity of a URL depends on the connection. So a process that
        cannot read the connection raises an error for a URL.

        Raises:
            ConfigurationError: The queue is given by its URL, and the connection cannot be read.
        """
        return ("sqs", self.connection, self._identity())

    def _identity(self) -> str:
        queue = self.queue
        return identity(queue, get_connection(self.connection)) if is_url(queue) else queue

    def describe_stream(self) -> str:
        return describe_source("sqs", self._identity(), connection=self.connection)

    async def check_source(self) -> None:
        from producers.sqs.checking import check_queue

        await check_queue(self._settings(), self.queue)

    async def measure_lag(self) -> SourceLag:
        from producers.sqs.lag import measure_lag

        return await measure_lag(self._settings(), self.queue)

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        from producers.sqs.checking import describe_delivery

        return await describe_delivery(self._settings(), self.queue, ask=ask)

    def make_producer(self) -> SqsSharedStreamProducer:
        return SqsSharedStreamProducer(self.queue, settings=self._settings())

    def _settings(self) -> SqsSettings:
        # Imported here: parsing a DAG file needs no settings, and no pydantic.
        from producers.sqs.settings import SqsSettings

        return SqsSettings.load(self.connection)

    def default_extra(self, message: BrokerMessage, value: Any) -> dict[str, Any]:
        get = message.position.__getitem__
        return {
            "value": value,
            "message_id": get("message_id"),
            "queue": get("queue"),
            "group_id": get("group_id"),
            "sequence_number": get("sequence_number"),
            "attributes": texts_of(message.attributes),
            "timestamp": timestamp_ms(message),
        }


def _queue(value: Any) -> str:
    queue = text_argument(value, "queue")
    if queue.startswith("arn:"):
        *_, region, account, name = queue.split(":")
        raise DagError(
            f"queue is {queue!r}, which is its ARN",
            hint=f"write its name, {name!r}, or its URL, 'https://sqs.{region}.amazonaws.com/{account}/{name}'",
        )
    if is_url(queue):
        try:
            parts = urlsplit(queue)
            parts.port  # noqa: B018  (raises ValueError for an invalid port)
        except ValueError as error:
            raise DagError(f"the queue's URL is invalid: {error}") from error
        if parts.username is not None or parts.password is not None:
            raise DagError(
                "the queue's URL has a user or a password in it",
                hint="put access_key_id and secret_access_key into the connection, as env:NAME or file:PATH",
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.strip("/"):
            raise DagError(
                f"{queue!r} is no URL of a queue",
                hint="copy it from the console, or from aws sqs get-queue-url --queue-name NAME",
            )
    return queue
