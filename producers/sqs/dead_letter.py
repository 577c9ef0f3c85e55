"""Sends unusable messages to a dead-letter queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from producers.sqs.connecting import find_url
from producers.sqs.errors import asked
from producers.sqs.queue import Queue, canonical, name_of
from triggerer.abc import BrokerMessage
from triggerer.errors import BrokerRefused
from triggerer.pluginkit.delivery import RecentRefusals

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings

logger = logging.getLogger(__name__)

ATTRIBUTE_PREFIX: Final = "triggerer.dead-letter."
_MOST_ATTRIBUTES: Final = 10
_LONGEST_REASON: Final = 1_000


class DeadLetters:
    """The dead-letter queue that the connection names, or else the one that the queue's redrive policy names."""

    def __init__(self, client: Any, queue: Queue, settings: SqsSettings) -> None:
        self._client = client
        self._queue = queue
        self._stated = settings.dead_letter_queue
        self._account = settings.account
        self._url: str | None = None
        self._refused = RecentRefusals()

    @property
    def has_queue(self) -> bool:
        """True if there is a dead-letter queue."""
        return self._stated is not None or self._queue.redrive is not None

    @property
    def accepts_messages(self) -> bool:
        """True if there is a dead-letter queue that has not refused a message recently."""
        return self.has_queue and not self._refused.has("")

    @property
    def limit(self) -> int | None:
        """The number of deliveries after which SQS itself dead-letters a message. None: it dead-letters no message."""
        return None if self._queue.redrive is None else self._queue.redrive.max_receive_count

    async def write(
        self,
        message: BrokerMessage,
        evidence: Mapping[str, object],
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message to the dead-letter queue, with its own attributes and `triggerer.dead-letter.*`.

        - The attributes `triggerer.dead-letter.*` contain the message's origin and the entries of `evidence`, which has
          at least a `reason`.
        - They replace the attributes `triggerer.dead-letter.*` of an earlier failure.
        - Some of them may be left out, because SQS allows ten attributes in all.
        - After a crash, a message can be sent twice, with the same `message-id`. A FIFO queue drops a repeat that comes
          within five minutes.

        Args:
            attributes: The message's own attributes with their types, as SQS sent them. None: the attributes of
                `message`, as texts.
        Raises:
            BrokerRefused: There is no dead-letter queue, or it refuses the message.
            BrokerUnavailable: The dead-letter queue cannot be reached.
        """
        what = f"sending message {message.position.get('message_id')} to the dead-letter queue"
        if not self.has_queue:
            raise BrokerRefused(
                f"{what}: queue {self._queue.name!r} has none",
                hint="give the queue a redrive policy, or the connection a dead_letter_queue",
            )
        try:
            url = await self._find()
            await self._send(url, message, evidence, attributes, what)
        except BrokerRefused:
            self._refused.record("")
            raise
        logger.error(
            "message set aside: %s is now in queue %s: %s",
            message.position.get("message_id"),
            name_of(url),
            evidence["reason"],
        )

    async def _send(
        self,
        url: str,
        message: BrokerMessage,
        evidence: Mapping[str, object],
        attributes: Mapping[str, Any] | None,
        what: str,
    ) -> None:
        request: dict[str, Any] = {
            "QueueUrl": url,
            "MessageBody": (message.value or b"").decode(errors="surrogatepass"),
            **self._fifo_arguments(url, message),
        }
        received = _typed(message.attributes) if attributes is None else attributes
        # A message that was moved back from the dead-letter queue still has the attributes of its earlier failure.
        own = {
            name: value for name, value in received.items() if not name.startswith(ATTRIBUTE_PREFIX)
        }
        ours = self._attributes(message, evidence)
        room = max(0, _MOST_ATTRIBUTES - len(own))
        shown = own | dict(list(ours.items())[:room])
        try:
            await asked(self._client.send_message(**request, MessageAttributes=shown), what)
        except BrokerRefused as refused:
            if len(shown) == len(own):
                raise
            # Our attributes may have made the message too long, so try without them.
            try:
                await asked(self._client.send_message(**request, MessageAttributes=own), what)
            except BrokerRefused:
                raise refused from None

    async def check(self) -> None:
        """Check that the dead-letter queue exists, if the connection or the redrive policy names one.

        Raises:
            BrokerRefused, BrokerUnavailable: The dead-letter queue does not exist, cannot be looked up, or is the queue
                that the stream reads.
        """
        if self.has_queue:
            await self._find()

    async def _find(self) -> str:
        if self._url is None:
            if self._stated is not None:
                self._url = await find_url(self._client, self._stated, account=self._account)
            else:
                assert self._queue.redrive is not None
                redrive = self._queue.redrive
                self._url = await find_url(self._client, redrive.name, account=redrive.account)
        if canonical(self._url) == canonical(self._queue.url):
            raise BrokerRefused(
                f"the dead-letter queue of queue {self._queue.name!r} is that queue itself",
                hint="a dead letter would come again at once: name another dead_letter_queue",
            )
        return self._url

    @staticmethod
    def _fifo_arguments(url: str, message: BrokerMessage) -> dict[str, str]:
        if not url.endswith(".fifo"):
            return {}
        identity = str(message.position["message_id"])
        group = message.position.get("group_id")
        return {
            "MessageGroupId": str(group) if group else identity,
            "MessageDeduplicationId": identity,
        }

    def _attributes(
        self, message: BrokerMessage, evidence: Mapping[str, object]
    ) -> Mapping[str, Any]:
        fields = {
            "reason": str(evidence["reason"])[:_LONGEST_REASON],
            "message-id": message.position.get("message_id"),
            "queue": self._queue.name,
            **{name: value for name, value in evidence.items() if name != "reason"},
        }
        return _typed({ATTRIBUTE_PREFIX + name: str(value) for name, value in fields.items()})


def _typed(attributes: Mapping[str, str | bytes]) -> dict[str, Any]:
    """Return attributes in SQS's form, without empty ones, which SQS refuses."""
    return {
        name: (
            {"DataType": "Binary", "BinaryValue": value}
            if isinstance(value, bytes)
            else {"DataType": "String", "StringValue": value}
        )
        for name, value in attributes.items()
        if value
    }
