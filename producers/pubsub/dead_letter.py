"""Publishes unusable messages to the dead-letter topic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from google.pubsub_v1 import PubsubMessage

from producers.pubsub.errors import guarded
from triggerer.abc import BrokerMessage
from triggerer.errors import BrokerError, BrokerRefused
from triggerer.pluginkit.delivery import RecentRefusals

if TYPE_CHECKING:
    from google.pubsub_v1 import PublisherAsyncClient

logger = logging.getLogger(__name__)

ATTRIBUTE_PREFIX: Final = "triggerer.dead-letter."
_MOST_ATTRIBUTES: Final = 100
_MOST_BYTES: Final = 1_024
"""The most bytes of an attribute's value."""
_TIMEOUT_S: Final = 15.0


class DeadLetters:
    """Writes to the dead-letter topic.

    Args:
        topic: The topic's full path. None: there is no dead-letter topic.
        open_publisher: Returns the publisher. Called only for dead letters, so a stream without dead letters opens no
            publisher.
    """

    def __init__(
        self, topic: str | None, *, open_publisher: Callable[[], PublisherAsyncClient]
    ) -> None:
        self.topic = topic
        self._refused = RecentRefusals()
        self._open_publisher = open_publisher

    @property
    def accepts_messages(self) -> bool:
        """Return whether there is a dead-letter topic that has not refused a message recently."""
        return self.topic is not None and not self._refused.has(self.topic)

    async def write(self, message: BrokerMessage, evidence: Mapping[str, object]) -> None:
        """Publish the message's data, ordering key and attributes, and return once Pub/Sub has stored them.

        The attributes `triggerer.dead-letter.*` contain the message's origin and the entries of `evidence`, which has
        at least a `reason`. After a crash, a message can be written twice. Its message id, in these attributes, shows
        the repeat.

        Raises:
            BrokerError: The message could not be published; the original must not be acknowledged.
        """
        if self.topic is None:
            raise BrokerRefused(
                "there is no dead-letter topic", hint="set dead_letter_topic in the connection"
            )
        what = f"dead letter of message {message.position.get('message_id')} to {self.topic}"
        copy = PubsubMessage(
            data=message.value or b"",
            ordering_key=(message.key or b"").decode(),
            attributes=_attributes(message, evidence),
        )
        try:
            await guarded(
                self._open_publisher().publish(
                    topic=self.topic, messages=[copy], retry=None, timeout=_TIMEOUT_S
                ),
                what,
            )
        except BrokerError as error:
            if isinstance(error, BrokerRefused):
                self._refused.record(self.topic)
            error.hint = (
                f"does the topic {self.topic} exist, and has the account roles/pubsub.publisher?"
            )
            raise
        logger.error("%s: %s", what, evidence["reason"])


def _attributes(message: BrokerMessage, evidence: Mapping[str, object]) -> dict[str, str]:
    """Return the message's attributes, and as many of ours as Pub/Sub allows, the most important first."""
    attributes = {
        name: value if isinstance(value, str) else value.decode("utf-8", "replace")
        for name, value in message.attributes.items()
    }
    own: dict[str, object] = {
        "reason": evidence["reason"],
        "subscription": message.position.get("subscription", ""),
        "message-id": message.position.get("message_id", ""),
        "published-at": "" if message.published_at is None else message.published_at.isoformat(),
        **evidence,
    }
    for name, value in own.items():
        if len(attributes) < _MOST_ATTRIBUTES or ATTRIBUTE_PREFIX + name in attributes:
            text = str(value).encode()[:_MOST_BYTES].decode("utf-8", "ignore")
            attributes[ATTRIBUTE_PREFIX + name] = text
    return attributes
