"""Connections to Pub/Sub, or to an emulator without credentials."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import google.auth
import grpc
from anyio import to_thread
from google.api_core import grpc_helpers, grpc_helpers_async
from google.auth.exceptions import DefaultCredentialsError
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import (
    SubscriberGrpcAsyncIOTransport,
    SubscriberGrpcTransport,
)

from triggerer.errors import ConfigurationError

if TYPE_CHECKING:
    from producers.pubsub.settings import PubSubSettings

_SCOPES: Final = ("https://www.googleapis.com/auth/pubsub",)
_HOST: Final = "pubsub.googleapis.com:443"
_CLOSE_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials, and the project of subscriptions and topics that are named without a project."""

    credentials: Any
    """Google's credentials; None for an emulator, which needs none."""
    project: str | None

    def path(self, kind: str, name: str) -> str:
        """Return the full path of a subscription or a topic.

        Args:
            kind: "subscriptions" or "topics".
        Raises:
            ConfigurationError: The name has no project, and none is known.
        """
        if name.startswith("projects/"):
            return name
        if not self.project:
            raise ConfigurationError(
                f"no project is known for {name!r}",
                hint=f"set project in the connection, or write projects/PROJECT/{kind}/{name}",
            )
        return f"projects/{self.project}/{kind}/{name}"


async def find_access(settings: PubSubSettings) -> Access:
    """Load the credentials in a thread, because Google's library may send a request to the metadata server.

    Raises:
        ConfigurationError: There are no credentials, or their file cannot be used.
    """
    if settings.emulator_host:
        return Access(None, settings.project)
    try:
        credentials, project = await to_thread.run_sync(_load, settings, abandon_on_cancel=True)
    except DefaultCredentialsError as error:
        place = f" in {settings.named_credentials}" if settings.credentials_file else ""
        raise ConfigurationError(
            f"no credentials for Pub/Sub{place}: {error}",
            hint="set credentials_file in the connection, or gcloud auth application-default login",
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{settings.named_credentials} cannot be used for Pub/Sub: {error}"
        ) from error
    return Access(credentials, settings.project or project)


def _load(settings: PubSubSettings) -> tuple[Any, str | None]:
    if settings.credentials_file:
        # `load_credentials_from_file` is deprecated only for untrusted files, and this file is the operator's own.
        load: Any = google.auth.load_credentials_from_file
        given: Any = settings.credentials_file
        if settings.has_inline_credentials:
            load, given = google.auth.load_credentials_from_dict, json.loads(given)
        found: tuple[Any, str | None] = load(given, scopes=_SCOPES)
        return found
    return google.auth.default(scopes=_SCOPES)


class Connection:
    """The channels of one producer. They connect at the first request."""

    def __init__(self, settings: PubSubSettings, access: Access) -> None:
        self._settings = settings
        self._access = access
        self._options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", int(settings.keepalive_s * 1_000)),
            ("grpc.keepalive_timeout_ms", 10_000),
            # Give each producer a connection of its own. Otherwise producers would share one connection and its limit
            # on concurrent streams.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = self._open()
        self.subscriber = SubscriberAsyncClient(
            transport=SubscriberGrpcAsyncIOTransport(channel=self._channel)
        )
        self._publisher: PublisherAsyncClient | None = None
        self._blocking: Any = None

    def _open(self) -> Any:
        if self._settings.emulator_host:
            return grpc.aio.insecure_channel(self._settings.emulator_host, options=self._options)
        return grpc_helpers_async.create_channel(
            self._settings.endpoint or _HOST,
            credentials=self._access.credentials,
            options=self._options,
        )

    @property
    def publisher(self) -> PublisherAsyncClient:
        if self._publisher is None:
            self._publisher = PublisherAsyncClient(
                transport=PublisherGrpcAsyncIOTransport(channel=self._channel)
            )
        return self._publisher

    def open_blocking_modify(self) -> Any:
        """Return the blocking call that extends leases. It has a connection of its own, which `aclose` closes."""
        if self._settings.emulator_host:
            channel = grpc.insecure_channel(self._settings.emulator_host, options=self._options)
        else:
            channel = grpc_helpers.create_channel(
                self._settings.endpoint or _HOST,
                credentials=self._access.credentials,
                options=self._options,
            )
        self._blocking = channel
        return SubscriberGrpcTransport(channel=channel).modify_ack_deadline

    def close_blocking(self) -> None:
        """End the calls of the thread that extends leases. Any thread may call this."""
        if self._blocking is not None:
            self._blocking.close()

    async def aclose(self) -> None:
        self.close_blocking()
        await self._channel.close(_CLOSE_GRACE_S)
