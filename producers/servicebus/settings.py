"""The settings of a Service Bus connection, checked before anything connects."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from triggerer.errors import ConfigurationError
from triggerer.pluginkit.connections import (
    DeliverySettings,
    OptionalText,
    Positive,
    PositiveSeconds,
)

_HOST: Final = re.compile(r"[^\s/]+")
_ENDPOINT: Final = re.compile(r"sb://[^\s/]+/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBusSettings(DeliverySettings):
    """`[connections.<id>]` of a namespace: a connection string, or a host name and the default credential chain."""

    aliases: ClassVar[dict[str, str]] = {"namespace": "fully_qualified_namespace"}
    examples: ClassVar[dict[str, str]] = {
        "fully_qualified_namespace": "example.servicebus.windows.net"
    }

    connection_string: OptionalText = field(default=None, repr=False)
    """A connection string with the key of a shared access policy. `UseDevelopmentEmulator=true` turns TLS off."""
    fully_qualified_namespace: OptionalText = None
    """The namespace's host. The credentials come from azure-identity's DefaultAzureCredential: managed identity,
    environment, developer tools."""
    client_id: OptionalText = None
    """The user-assigned managed identity to use; None: the system-assigned one."""
    transport: Literal["amqp", "websocket"] = "amqp"
    """AMQP on port 5671, or inside WebSockets on port 443, for networks that block other ports."""
    receivers: Positive = 1
    """The number of receiving connections of an entity without sessions."""
    max_sessions: Positive = 8
    """The number of sessions that are read at the same time, each on its own connection."""
    session_idle_s: PositiveSeconds = 60.0
    """How long an empty session stays open; one second if all `max_sessions` are open, because other sessions may
    wait.
    """
    max_in_flight: Positive = 500
    """The most messages that this stream locks and has not settled. Failed messages that wait for their redelivery do
    not count."""
    connect_timeout_s: PositiveSeconds = 30.0
    """If Service Bus cannot be reached for this long, the stream ends with an error."""
    request_timeout_s: PositiveSeconds = 10.0
    """How long Service Bus may take to answer a request."""
    idle_timeout_s: PositiveSeconds = 60.0
    """After this time without any frame, a connection counts as broken and is closed. On a working connection, both
    sides send empty frames more often.
    """
    dead_letter_queue: OptionalText = None
    """A queue of the namespace. Service Bus itself dead-letters only locked messages. If the lock has ended, the stream
    sends a copy of the message to this queue (rule 18), and needs the right to send to it.
    """

    def check(self, where: str) -> None:
        if self.connection_string is None and self.fully_qualified_namespace is None:
            raise ConfigurationError(
                f"connection_string or fully_qualified_namespace is missing in {where}",
                hint='for example: fully_qualified_namespace = "example.servicebus.windows.net"',
            )
        if self.connection_string is not None and self.fully_qualified_namespace is not None:
            raise ConfigurationError(
                f"{where} has both a connection_string and a fully_qualified_namespace",
                hint="remove the one that you do not use",
            )
        if self.connection_string is not None:
            _check_connection_string(self.connection_string, where)
        elif not _HOST.fullmatch(self.host):
            raise ConfigurationError(
                f"fully_qualified_namespace in {where} is {self.host!r}",
                hint='a name without a scheme: "example.servicebus.windows.net"',
            )

    @property
    def is_emulator(self) -> bool:
        """Whether the connection is to an emulator (`UseDevelopmentEmulator=true`), by AMQP without TLS."""
        if self.connection_string is None:
            return False
        return _parts(self.connection_string).get("usedevelopmentemulator", "").lower() == "true"

    @property
    def sdk_connection_string(self) -> str | None:
        """The connection string without the entity, whose name the SDK would compare case-sensitively."""
        if self.connection_string is None:
            return None
        parts = self.connection_string.strip().split(";")
        return ";".join(
            part for part in parts if not part.strip().lower().startswith("entitypath=")
        )

    def check_entity(self, name: str) -> None:
        """Refuse to read `dead_letter_queue`, or an entity that the connection string does not allow.

        Raises:
            ConfigurationError: The string names another entity (`EntityPath`), or the entity is `dead_letter_queue`.
        """
        if (self.dead_letter_queue or "").lower() == name.lower():
            raise ConfigurationError(
                f"dead_letter_queue of the Service Bus connection is {name!r}, which is read",
                hint="a dead letter would come again at once: name another queue",
            )
        stated = _parts(self.connection_string or "").get("entitypath", "")
        if stated and stated.lower() != name.lower():
            raise ConfigurationError(
                f"the connection_string is for {stated!r} alone (EntityPath), and {name!r} is read with it",
                hint="copy the namespace's connection string, or give the entity its own connection",
            )

    @property
    def host(self) -> str:
        """The namespace's host, for log lines and errors."""
        if self.fully_qualified_namespace is not None:
            return self.fully_qualified_namespace
        assert self.connection_string is not None
        return _parts(self.connection_string).get("endpoint", "").split("//")[-1].rstrip("/")


def _parts(connection_string: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in connection_string.strip().split(";") if part)
    return {name.strip().lower(): value for name, _, value in pairs}


def _check_connection_string(text: str, where: str) -> None:
    parts = _parts(text)
    if not _ENDPOINT.fullmatch(parts.get("endpoint", "")):
        raise ConfigurationError(
            f"connection_string in {where} has no Endpoint=sb://…",
            hint="copy it whole, from the namespace's shared access policies",
        )
    if "sharedaccesssignature" not in parts and not (
        parts.get("sharedaccesskey") and parts.get("sharedaccesskeyname")
    ):
        raise ConfigurationError(
            f"connection_string in {where} has no SharedAccessKeyName and SharedAccessKey",
            hint="copy it whole, from the namespace's shared access policies",
        )
