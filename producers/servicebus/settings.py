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
    """With the key of a shared access policy; `UseDevelopmentEmulator=true` in it: without TLS."""
    fully_qualified_namespace: OptionalText = None
    """Signed in to by azure-identity's DefaultAzureCredential: managed identity, environment, developer tools."""
    client_id: OptionalText = None
    """The user-assigned managed identity to use; None: the system's."""
    transport: Literal["amqp", "websocket"] = "amqp"
    """AMQP on port 5671, or inside WebSockets on port 443, for networks that let nothing else through."""
    receivers: Positive = 1
    """Connections that receive, of a queue or subscription without sessions."""
    max_sessions: Positive = 8
    """Sessions that are read at the same time, each on a connection of its own."""
    session_idle_s: PositiveSeconds = 60.0
    """An empty session is kept so long, if nobody else waits for its receiver; otherwise one second."""
    max_in_flight: Positive = 500
    """Messages that are locked by this stream and not settled."""
    connect_timeout_s: PositiveSeconds = 30.0
    """The stream ends with an error when Service Bus cannot be reached for so long."""
    request_timeout_s: PositiveSeconds = 10.0
    """How long an answer may take."""
    idle_timeout_s: PositiveSeconds = 60.0
    """A connection on which nothing comes for so long is given up: both sides send empty frames sooner."""
    dead_letter_queue: OptionalText = None
    """A queue of the namespace for what is dead-lettered when its lock is long gone (rule 18). Needs Send."""

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
        """Whether it is the vendor's emulator, or what passes for it: AMQP without TLS."""
        if self.connection_string is None:
            return False
        return _parts(self.connection_string).get("usedevelopmentemulator", "").lower() == "true"

    @property
    def sdk_connection_string(self) -> str | None:
        """As the SDK is given it: without the entity, which it would compare letter by letter."""
        if self.connection_string is None:
            return None
        parts = self.connection_string.strip().split(";")
        return ";".join(
            part for part in parts if not part.strip().lower().startswith("entitypath=")
        )

    def check_entity(self, name: str) -> None:
        """Refuse to read an entity with the connection string of another, or the place of its dead letters.

        Raises:
            ConfigurationError: The string says which entity it is for (`EntityPath`), and it is not that one; or it is
                `dead_letter_queue`.
        """
        if (self.dead_letter_queue or "").lower() == name.lower():
            raise ConfigurationError(
                f"dead_letter_queue of the Service Bus connection is {name!r}, which is read",
                hint="what was dead-lettered would come again at once: name another queue",
            )
        stated = _parts(self.connection_string or "").get("entitypath", "")
        if stated and stated.lower() != name.lower():
            raise ConfigurationError(
                f"the connection_string is for {stated!r} alone (EntityPath), and {name!r} is read with it",
                hint="copy the namespace's, or give the entity a connection of its own",
            )

    @property
    def host(self) -> str:
        """Where it connects to, for messages."""
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
