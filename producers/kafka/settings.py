"""The settings of a Kafka connection, checked before anything connects.

This module is imported only when a connection is opened: pydantic would slow down the parsing of DAG files.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import collect_hosts
from pydantic import BeforeValidator, Field

from producers.kafka.connection.oauth import ConfiguredToken, EndpointTokens
from triggerer.errors import ConfigurationError
from triggerer.pluginkit.connections import DeliverySettings, OptionalText, Positive


def _joined(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(DeliverySettings):
    """`[connections.<id>]` of a Kafka cluster. Every field is a key of that section."""

    aliases: ClassVar[Mapping[str, str]] = {
        "sasl_username": "sasl_plain_username",
        "sasl_password": "sasl_plain_password",
    }
    examples: ClassVar[Mapping[str, str]] = {"bootstrap_servers": "localhost:9092"}

    bootstrap_servers: Annotated[str, Field(min_length=1), BeforeValidator(_joined)]
    client_id: str = "triggerer"
    client_rack: OptionalText = None

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] = (
        "PLAIN"
    )
    sasl_plain_username: OptionalText = None
    sasl_plain_password: OptionalText = field(default=None, repr=False)
    sasl_oauth_token: OptionalText = field(default=None, repr=False)
    """An access token for OAUTHBEARER; usually `file:PATH`, which is read again whenever the stream opens again."""
    sasl_oauth_token_endpoint_url: OptionalText = None
    """The OAuth 2.0 endpoint that issues access tokens for `sasl_oauth_client_id` and `sasl_oauth_client_secret`."""
    sasl_oauth_client_id: OptionalText = None
    sasl_oauth_client_secret: OptionalText = field(default=None, repr=False)
    sasl_oauth_scope: OptionalText = None
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_domain_name: OptionalText = None
    ssl_cafile: OptionalText = None
    ssl_certfile: OptionalText = None
    ssl_keyfile: OptionalText = None
    ssl_password: OptionalText = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    dead_letter_topic: str = "{topic}.dead-letter"
    expired_offset: Literal["earliest", "latest", "fail"] = "earliest"
    """Where to continue if retention deleted unread messages: "earliest" means the oldest message that is left, and
    "latest" the end of the log. With "fail" the stream fails until an operator sets another value. The number of
    deleted messages is always logged.
    """

    schema_registry_url: OptionalText = None
    """The schema registry for `decode="avro"`, `"jsonschema"` and `"protobuf"`. This key and the next two are read by
    the triggers; the producer ignores them.
    """
    schema_registry_username: OptionalText = None
    schema_registry_password: OptionalText = field(default=None, repr=False)

    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    max_batch: Positive = 500
    """The most messages to read from the client at once; other work on the event loop runs between batches."""
    fetch_max_bytes: Positive = 16 << 20
    """The most bytes of a broker's answer to one request, over all partitions. A larger message is returned alone."""
    max_partition_fetch_bytes: Positive = 1 << 20
    """The most bytes that a broker returns for one partition; a larger message is returned alone. The client buffers
    one answer for each partition, so a partition uses about this much memory, more if its messages are compressed."""
    fetch_max_wait_ms: int = 500
    """How long the broker may delay a fetch while it has no message. For idle streams: `idle_fetch_wait_ms`."""
    request_timeout_ms: Positive = 20_000
    session_timeout_ms: Positive = 10_000
    """After a crash, the group's other members wait this long for the crashed member's partitions."""
    heartbeat_interval_ms: Positive = 3_000
    metadata_max_age_ms: int = 30_000
    """New partitions are found within this time."""
    group_instance_id: OptionalText = None
    commit_timeout_s: float = 30.0
    """If the broker accepts no commit for this long, the stream ends and is opened again."""
    revoke_timeout_s: float = 5.0
    """When partitions move to another member, messages in flight can still be advanced for this long."""

    def check(self, where: str) -> None:
        self._check_servers(where)
        if self.security_protocol.startswith("SASL"):
            for name in self._needed_for_login():
                if not getattr(self, name):
                    raise ConfigurationError(
                        f"{name} is missing in {where}: {self.security_protocol} needs it",
                        hint="a secret may be given as env:NAME or file:PATH",
                    )
        url = self.schema_registry_url
        if url is not None and not url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"schema_registry_url in {where} is {url!r}", hint="http://host:port, or https://…"
            )
        if self.sasl_mechanism == "GSSAPI" and find_spec("gssapi") is None:
            raise ConfigurationError(
                f"sasl_mechanism in {where} is GSSAPI, which needs a package that is not installed",
                hint="pip install gssapi, which needs the libraries of Kerberos",
            )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms in {where} must be below session_timeout_ms",
                hint="a third of it is usual",
            )

    @property
    def idle_fetch_wait_ms(self) -> int:
        """How long the broker may delay a fetch of an idle stream. Other requests on the connection wait meanwhile."""
        bounds = (self.session_timeout_ms // 4, self.request_timeout_ms // 4)
        return max(self.fetch_max_wait_ms, min(5 * self.fetch_max_wait_ms, *bounds))

    def check_dead_letters(self, topics: Collection[str]) -> None:
        """Refuse a topic that would be its own dead-letter topic.

        Raises:
            ConfigurationError: Dead letters of a topic would be read again as new messages, without end.
        """
        for topic in topics:
            if self.dead_letter_topic_of(topic) == topic:
                raise ConfigurationError(
                    f"dead_letter_topic of the Kafka connection is {self.dead_letter_topic!r}, and {topic!r} is read",
                    hint="a dead letter would come again at once: name another topic",
                )

    def _check_servers(self, where: str) -> None:
        if "@" in self.bootstrap_servers:
            # The value is not shown: it may contain a password.
            raise ConfigurationError(
                f"bootstrap_servers in {where} has a user in it",
                hint="put the user into sasl_username and sasl_password; bootstrap_servers takes host:port only",
            )
        try:
            hosts = collect_hosts(self.bootstrap_servers, randomize=False)
        except ValueError:
            hosts = [("", 0, None)]
        if not all(host and "/" not in host and 0 < port < 1 << 16 for host, port, _ in hosts):
            raise ConfigurationError(
                f"bootstrap_servers in {where} is {self.bootstrap_servers!r}",
                hint="host:port, several with commas between: broker-1:9092,broker-2:9092",
            )

    def _needed_for_login(self) -> tuple[str, ...]:
        if self.sasl_mechanism == "GSSAPI":
            return ()
        if self.sasl_mechanism != "OAUTHBEARER":
            return "sasl_plain_username", "sasl_plain_password"
        if self.sasl_oauth_token_endpoint_url is None:
            return ("sasl_oauth_token",)
        return "sasl_oauth_client_id", "sasl_oauth_client_secret"

    def dead_letter_topic_of(self, topic: str) -> str:
        return self.dead_letter_topic.replace("{topic}", topic)

    def client_arguments(self) -> dict[str, Any]:
        """Return the arguments that aiokafka's consumer, producer and client share.

        Raises:
            ConfigurationError: A certificate or key cannot be read.
        """
        arguments: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "metadata_max_age_ms": self.metadata_max_age_ms,
            "security_protocol": self.security_protocol,
            "sasl_kerberos_service_name": self.sasl_kerberos_service_name,
            "sasl_kerberos_domain_name": self.sasl_kerberos_domain_name,
        }
        context = self._ssl_context() if self.security_protocol.endswith("SSL") else None
        if self.security_protocol.startswith("SASL"):
            arguments["sasl_mechanism"] = self.sasl_mechanism
            arguments["sasl_plain_username"] = self.sasl_plain_username
            arguments["sasl_plain_password"] = self.sasl_plain_password
            if self.sasl_mechanism == "OAUTHBEARER":
                arguments["sasl_oauth_token_provider"] = self._token_provider(context)
        if context is not None:
            arguments["ssl_context"] = context
        return arguments

    def reading_arguments(self) -> dict[str, Any]:
        """Return the arguments that all consumers share, in a group or not.

        Raises:
            ConfigurationError: A certificate or key cannot be read.
        """
        return self.client_arguments() | {
            "client_rack": self.client_rack,
            "enable_auto_commit": False,
            # Our producer resets positions itself, and logs the reason.
            "auto_offset_reset": "none",
            "isolation_level": self.isolation_level,
            "fetch_min_bytes": 1,
            "fetch_max_wait_ms": self.fetch_max_wait_ms,
            "fetch_max_bytes": self.fetch_max_bytes,
            "max_partition_fetch_bytes": self.max_partition_fetch_bytes,
        }

    def _token_provider(self, context: ssl.SSLContext | None) -> AbstractTokenProvider:
        url = self.sasl_oauth_token_endpoint_url
        if url is None:
            return ConfiguredToken(self.sasl_oauth_token or "")
        return EndpointTokens(
            url,
            self.sasl_oauth_client_id or "",
            self.sasl_oauth_client_secret or "",
            scope=self.sasl_oauth_scope,
            context=context if url.startswith("https:") else None,
        )

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
            context.check_hostname = self.ssl_check_hostname
            if self.ssl_certfile:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, self.ssl_password)
        except (OSError, ValueError) as error:
            files = ", ".join(filter(None, (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)))
            raise ConfigurationError(
                f"the TLS files of the Kafka connection cannot be used ({files or 'none given'}): {error}"
            ) from error
        return context
