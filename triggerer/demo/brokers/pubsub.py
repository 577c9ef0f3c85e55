"""`triggerer demo --broker pubsub`, with an emulator that the user started."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import grpc
from google.api_core.exceptions import GoogleAPIError
from google.pubsub_v1 import PublisherAsyncClient, PubsubMessage, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from triggerer.demo.brokers.source import NAME, REMOVAL_S, TrialSource
from triggerer.errors import BrokerUnavailable, ConfigurationError

_PROJECT = "triggerer-demo"
_BATCH = 500
_CONNECT_S = 10.0


class PubSubTrial(TrialSource):
    """A topic and its subscription. The endpoint or PUBSUB_EMULATOR_HOST names the emulator."""

    trigger = f'PubSubEventTrigger("{NAME}")', "from watchers.pubsub import PubSubEventTrigger"

    def __init__(self, endpoint: str | None) -> None:
        host = endpoint or os.environ.get("PUBSUB_EMULATOR_HOST")
        if not host:
            raise ConfigurationError(
                "no Pub/Sub emulator is configured",
                hint="start the emulator (gcloud beta emulators pubsub start, or deploy/compose.yaml), and name"
                " it: --endpoint localhost:8085",
            )
        self._host = host
        self.where = f"the Pub/Sub emulator at {host}"
        self.connection = "pubsub", {"project": _PROJECT, "emulator_host": host}
        self._topic = f"projects/{_PROJECT}/topics/{NAME}"
        self._subscription = f"projects/{_PROJECT}/subscriptions/{NAME}"
        self._channel: Any = None

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._host)
        self._publisher = PublisherAsyncClient(
            transport=PublisherGrpcAsyncIOTransport(channel=self._channel)
        )
        self._subscriber = SubscriberAsyncClient(
            transport=SubscriberGrpcAsyncIOTransport(channel=self._channel)
        )
        try:
            with anyio.fail_after(_CONNECT_S):
                await self._channel.channel_ready()
                await self._remove()
                await self._publisher.create_topic(name=self._topic)
                await self._subscriber.create_subscription(
                    name=self._subscription, topic=self._topic, ack_deadline_seconds=60
                )
        except (GoogleAPIError, grpc.RpcError, TimeoutError) as error:
            await self._channel.close()
            raise BrokerUnavailable(
                f"no subscription can be made at {self._host}: {str(error) or 'no answer'}",
                hint="is the emulator running there?",
            ) from error
        return self

    async def _remove(self) -> None:
        """Delete the topic and the subscription, so that no messages of an earlier trial are counted."""
        await _unless_gone(self._subscriber.delete_subscription(subscription=self._subscription))
        await _unless_gone(self._publisher.delete_topic(topic=self._topic))

    async def publish(self, values: Sequence[bytes]) -> None:
        for start in range(0, len(values), _BATCH):
            messages = [PubsubMessage(data=value) for value in values[start : start + _BATCH]]
            try:
                await self._publisher.publish(topic=self._topic, messages=messages)
            except GoogleAPIError as error:
                raise BrokerUnavailable(f"Pub/Sub refused a message: {error}") from error

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Remove the topic after Ctrl-C too.
        with anyio.move_on_after(REMOVAL_S, shield=True):
            try:
                await self._remove()
            finally:
                await self._channel.close()


async def _unless_gone(removal: Awaitable[None]) -> None:
    try:
        await removal
    except GoogleAPIError as error:
        if getattr(error, "grpc_status_code", None) is not grpc.StatusCode.NOT_FOUND:
            raise
