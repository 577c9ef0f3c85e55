"""A synchronous client of SQS's API for tests, on top of the vendor's client."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

_numbers = itertools.count()


class SqsClient:
    """Queues and messages of the service at an endpoint. All methods may be called from any thread."""

    region = "us-east-1"

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._lock = threading.Lock()

    @cached_property
    def sdk(self) -> Any:
        """The vendor's client."""
        # The import takes a fifth of a second, so only sessions that need it pay for it.
        import botocore.session
        from botocore.config import Config

        return botocore.session.Session().create_client(
            "sqs",
            region_name=self.region,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(connect_timeout=5, read_timeout=30),
        )

    @property
    def connection(self) -> dict[str, Any]:
        """Return the settings of a connection to this service."""
        return {
            "region": self.region,
            "endpoint_url": self.endpoint,
            "access_key_id": "test",
            "secret_access_key": "test",
        }

    def create_queue(
        self,
        name: str,
        *,
        visibility_s: int = 30,
        dead_letters: str | None = None,
        max_receive_count: int = 100,
    ) -> str:
        """Create a queue, and return its URL. The queue is FIFO if the name ends with `.fifo`.

        Args:
            dead_letters: The URL of the dead-letter queue for the redrive policy; None: no redrive policy.
        """
        attributes = {"VisibilityTimeout": str(visibility_s)}
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        if dead_letters is not None:
            policy = {
                "deadLetterTargetArn": self.attributes(dead_letters)["QueueArn"],
                "maxReceiveCount": max_receive_count,
            }
            attributes["RedrivePolicy"] = json.dumps(policy)
        with self._lock:
            return str(self.sdk.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def delete_queue(self, url: str) -> None:
        with self._lock:
            self.sdk.delete_queue(QueueUrl=url)

    def queue_names(self) -> set[str]:
        with self._lock:
            urls = self.sdk.list_queues().get("QueueUrls", [])
        return {url.rpartition("/")[2] for url in urls}

    def attributes(self, url: str) -> dict[str, str]:
        """Return all attributes of a queue."""
        with self._lock:
            answer = self.sdk.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        return dict(answer["Attributes"])

    def send(self, url: str, bodies: Sequence[str], *, group: str | None = None) -> list[str]:
        """Send messages in order; return their ids."""
        if url.endswith(".fifo"):
            # ElasticMQ handles the entries of a batch at the same time, and keeps no order among them.
            return [self._send_to_group(url, body, group or "g") for body in bodies]
        entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
        ids: list[str] = []
        for start in range(0, len(entries), 10):
            with self._lock:
                answer = self.sdk.send_message_batch(
                    QueueUrl=url, Entries=entries[start : start + 10]
                )
            assert not answer.get("Failed"), answer
            ids += [one["MessageId"] for one in sorted(answer["Successful"], key=_by_number)]
        return ids

    def _send_to_group(self, url: str, body: str, group: str) -> str:
        with self._lock:
            answer = self.sdk.send_message(
                QueueUrl=url,
                MessageBody=body,
                MessageGroupId=group,
                MessageDeduplicationId=str(next(_numbers)),
            )
        return str(answer["MessageId"])

    def count(self, url: str) -> int:
        """How many messages a queue holds, visible or not."""
        return sum(self.counts(url))

    def counts(self, url: str) -> tuple[int, int]:
        """Return the number of visible messages, and of messages that are in flight or delayed."""
        attributes = self.attributes(url)
        return (
            int(attributes["ApproximateNumberOfMessages"]),
            int(attributes["ApproximateNumberOfMessagesNotVisible"])
            + int(attributes.get("ApproximateNumberOfMessagesDelayed", 0)),
        )

    def take_all(self, url: str) -> list[dict[str, Any]]:
        """Receive and delete the visible messages, and return them."""
        found: list[dict[str, Any]] = []
        with self._lock:
            while True:
                answer = self.sdk.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=10,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=["All"],
                )
                messages = answer.get("Messages", [])
                if not messages:
                    return found
                found += messages
                for message in messages:
                    self.sdk.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def _by_number(entry: dict[str, Any]) -> int:
    return int(entry["Id"])
