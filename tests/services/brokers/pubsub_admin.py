"""The calls that tests make to a Pub/Sub server: topics, subscriptions, messages."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from google.pubsub_v1 import PubsubMessage
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

PROJECT = "tests"


def topic_path(name: str) -> str:
    return f"projects/{PROJECT}/topics/{name}"


def subscription_path(name: str) -> str:
    return f"projects/{PROJECT}/subscriptions/{name}"


class PubSubAdmin:
    """A blocking client of the server at `host`. Async tests call its methods by `asyncio.to_thread`."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._channel = grpc.insecure_channel(host)
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self._subscriber = SubscriberClient(
            transport=SubscriberGrpcTransport(channel=self._channel)
        )

    def create(self, name: str, *, ack_deadline_s: int = 10, **settings: Any) -> None:
        """Make a topic and a subscription of the same name; `settings` are further fields of the subscription."""
        self.create_topic(name)
        self._subscriber.create_subscription(
            request={
                "name": subscription_path(name),
                "topic": topic_path(name),
                "ack_deadline_seconds": ack_deadline_s,
                **settings,
            }
        )

    def create_subscription(self, name: str, topic: str) -> None:
        self._subscriber.create_subscription(
            request={
                "name": subscription_path(name),
                "topic": topic_path(topic),
                "ack_deadline_seconds": 10,
            }
        )

    def create_topic(self, name: str) -> None:
        self._publisher.create_topic(name=topic_path(name))

    def delete(self, name: str) -> None:
        """Delete the topic and the subscription of that name."""
        self.delete_subscription(name)
        self._publisher.delete_topic(topic=topic_path(name))

    def delete_subscription(self, name: str) -> None:
        self._subscriber.delete_subscription(subscription=subscription_path(name))

    def publish(
        self,
        topic: str,
        values: Sequence[str | bytes],
        *,
        key: str = "",
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Send messages in order; return the ids that the server gave them."""
        messages = [
            PubsubMessage(
                data=value.encode() if isinstance(value, str) else value,
                ordering_key=key,
                attributes=dict(attributes or {}),
            )
            for value in values
        ]
        answer = self._publisher.publish(topic=topic_path(topic), messages=messages)
        return list(answer.message_ids)

    def take(self, subscription: str, *, at_most: int = 100) -> list[Any]:
        """Pull and acknowledge the messages that are there now, without waiting for more; return them."""
        path = subscription_path(subscription)
        with warnings.catch_warnings():
            # The warning tells applications to wait for messages. This call must not wait.
            warnings.simplefilter("ignore", DeprecationWarning)
            answer = self._subscriber.pull(
                request={"subscription": path, "max_messages": at_most, "return_immediately": True}
            )
        received = list(answer.received_messages)
        if received:
            self._subscriber.acknowledge(
                subscription=path, ack_ids=[one.ack_id for one in received]
            )
        return [one.message for one in received]

    def close(self) -> None:
        self._channel.close()
