"""The settings of a Pub/Sub connection, checked before anything connects.

Imported when a connection is opened, not with the watchers: pydantic would take a good part of the time that it takes
to parse a DAG file.
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
    """`[connections.<id>]` of Google Cloud Pub/Sub. Every field is a key of that section, and none is needed."""

    optional: ClassVar[str | None] = "pubsub"

    project: OptionalText = None
    """Of subscriptions and topics that are named without one. None: the project of the credentials."""
    credentials_file: OptionalText = field(default=None, repr=False)
    """A service account's key, or another file that Google's libraries read: its path, or what is in it, which is what
    `env:NAME` and `file:PATH` stand for. None: application default credentials."""
    emulator_host: OptionalText = None
    """`host:port` of an emulator, which is asked without TLS and without credentials."""
    endpoint: OptionalText = None
    """`host:port` of a regional endpoint, or of Private Service Connect. None: pubsub.googleapis.com."""

    dead_letter_topic: OptionalText = None
    """Where rejected messages go, and those that failed `max_deliveries` times. None: rejected messages are logged and
    acknowledged, failed ones are delivered again until the subscription's own dead-letter policy takes them."""

    max_outstanding_messages: Positive = 1_000
    """Messages that the service hands to a stream before some of them are acknowledged; those that wait here count."""
    max_outstanding_bytes: Positive = 100 << 20
    max_held_messages: Positive = 10_000
    """Messages that failed and are held for their delay, beside the others. Beyond it delays are a second at most."""
    ack_deadline_s: int | None = None
    """How long a lease on messages lasts unless it is extended, in whole seconds. None: from the 99th percentile of how
    long messages are held, between `min_ack_deadline_s` and ten minutes."""
    min_ack_deadline_s: Positive = 60
    """With `ack_deadline_s` None. After a crash, messages come again once this time is over."""
    max_extension_s: PositiveSeconds = 3_600.0
    """A message that is held for longer than this is no longer extended: the service delivers it again."""
    ack_timeout_s: PositiveSeconds = 60.0
    """Acknowledgements that the service does not take for this long end the stream, which is then opened anew."""
    unavailable_timeout_s: PositiveSeconds = 60.0
    """So does a service that cannot be reached for this long."""
    connect_timeout_s: PositiveSeconds = 2.0
    """The same for the first connection; then it is tried again after delays of up to a minute."""
    keepalive_s: PositiveSeconds = 30.0
    """How often the connection is tried while nothing comes: a network that is gone says nothing."""

    def check(self, where: str) -> None:
        for name in ("ack_deadline_s", "min_ack_deadline_s"):
            value = getattr(self, name)
            # Emulators take less, which makes tests quick.
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
                f"project is missing in {where}, which emulator_host needs", hint="any name will do"
            )

    @property
    def named_credentials(self) -> str:
        """The file, for messages."""
        return "credentials_file" if self.has_inline_credentials else str(self.credentials_file)

    @property
    def has_inline_credentials(self) -> bool:
        """Whether what is in the file was given, and not its path."""
        return self.credentials_file is not None and self.credentials_file.lstrip().startswith("{")

    @property
    def where(self) -> str:
        """The server, for messages."""
        return self.emulator_host or self.endpoint or "pubsub.googleapis.com"
