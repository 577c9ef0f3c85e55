"""The settings of a Pub/Sub connection, checked before anything connects.

This module is imported only when a connection is opened: pydantic would slow down the parsing of DAG files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from triggerer.errors import ConfigurationError
from triggerer.pluginkit.connections import (
    DeliverySettings,
    OptionalText,
    Positive,
    PositiveSeconds,
)

_SHORTEST_DEADLINE_S: Final = 10
_LONGEST_DEADLINE_S: Final = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubSettings(DeliverySettings):
    """`[connections.<id>]` of Google Cloud Pub/Sub. Every field is an optional key of that section."""

    optional: ClassVar[str | None] = "pubsub"

    project: OptionalText = None
    """The project of subscriptions and topics that are named without one. None: the project of the credentials."""
    credentials_file: OptionalText = field(default=None, repr=False)
    """The path or the content of a service account's key, or of another credentials file that Google's libraries read.
    `env:NAME` and `file:PATH` give the content. None: application default credentials."""
    emulator_host: OptionalText = None
    """`host:port` of an emulator, without TLS and without credentials."""
    endpoint: OptionalText = None
    """`host:port` of a regional endpoint, or of Private Service Connect. None: pubsub.googleapis.com."""

    dead_letter_topic: OptionalText = None
    """The topic for rejected messages, and for messages that failed `max_deliveries` times. None: rejected messages are
    parked, and failed ones are delivered again until the subscription's own dead-letter policy removes them.
    """

    max_outstanding_messages: Positive = 1_000
    """The most messages that Pub/Sub sends before some are acknowledged. Messages that wait in this process count
    too.
    """
    max_outstanding_bytes: Positive = 100 << 20
    max_held_messages: Positive = 10_000
    """In addition to `max_outstanding_messages`, this number of messages can wait in this process for a redelivery:
    failed messages, and the later messages of their ordering keys. While more messages wait, a failed message is given
    back after at most a second.
    """
    ack_deadline_s: int | None = None
    """How long a lease on messages lasts if it is not extended, in whole seconds. None: the 99th percentile of the time
    that messages are in flight, between `min_ack_deadline_s` and ten minutes."""
    min_ack_deadline_s: Positive = 60
    """The shortest lease if `ack_deadline_s` is None. After a crash, messages come again after this time."""
    max_extension_s: PositiveSeconds = 3_600.0
    """The lease of a message is extended for at most this long; then Pub/Sub delivers the message again."""
    ack_timeout_s: PositiveSeconds = 60.0
    """If Pub/Sub accepts no acknowledgement for this long, the stream ends and is opened again."""
    unavailable_timeout_s: PositiveSeconds = 60.0
    """If Pub/Sub cannot be reached for this long, the stream ends and is opened again."""
    connect_timeout_s: PositiveSeconds = 2.0
    """If a new stream cannot connect for this long, it ends. The runtime opens it again after up to a minute."""
    keepalive_s: PositiveSeconds = 30.0
    """How often an idle connection is checked, because a broken network sends no error."""

    def check(self, where: str) -> None:
        for name in ("ack_deadline_s", "min_ack_deadline_s"):
            value = getattr(self, name)
            # Allow shorter deadlines for emulators, which support them, so that tests are quick.
            shortest = 1 if self.emulator_host else _SHORTEST_DEADLINE_S
            if value is not None and not shortest <= value <= _LONGEST_DEADLINE_S:
                raise ConfigurationError(
                    f"{name} in {where} must be between {shortest} and {_LONGEST_DEADLINE_S}, not {value}"
                )
        if self.emulator_host and "://" in self.emulator_host:
            raise ConfigurationError(
                f"emulator_host in {where} is {self.emulator_host!r}",
                hint="a host and a port without a scheme, for example localhost:8085",
            )
        if self.endpoint and "://" in self.endpoint:
            raise ConfigurationError(
                f"endpoint in {where} is {self.endpoint!r}",
                hint="a host and a port without a scheme, for example europe-west3-pubsub.googleapis.com:443",
            )
        if self.emulator_host and not self.project:
            raise ConfigurationError(
                f"project is missing in {where}: emulator_host needs one", hint="any name will do"
            )

    @property
    def named_credentials(self) -> str:
        """The name of the credentials' file, for log lines and errors."""
        return "credentials_file" if self.has_inline_credentials else str(self.credentials_file)

    @property
    def has_inline_credentials(self) -> bool:
        """Whether the setting is the file's content, and not its path."""
        return self.credentials_file is not None and self.credentials_file.lstrip().startswith("{")

    @property
    def where(self) -> str:
        """The server's name, for log lines and errors."""
        return self.emulator_host or self.endpoint or "pubsub.googleapis.com"
