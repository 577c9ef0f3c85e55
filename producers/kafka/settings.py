"""What a Kafka connection may say, checked before anything connects."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, Self, get_args, get_type_hints

from triggerer.errors import ConfigurationError

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_ALIASES = {"sasl_username": "sasl_plain_username", "sasl_password": "sasl_plain_password"}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """`[connections.<id>]` of a Kafka cluster. Every field is a key of that section."""

    bootstrap_servers: str
    client_id: str = "triggerer"
    client_rack: str | None = None

    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_domain_name: str | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = None
    ssl_check_hostname: bool = True

    max_deliveries: int | None = 10
    """Failed deliveries of a message after which it is dead-lettered; 0 or None: it is redelivered for ever."""
    dead_letter_topic: str = "{topic}.dead-letter"
    redelivery_delay_s: float = 0.5
    """The first redelivery comes after at most this long; each further one after up to twice as long."""
    redelivery_delay_max_s: float = 60.0

    isolation_level: str = "read_committed"
    max_batch: int = 500
    """Messages taken from the client at once; between batches other work on the event loop gets its turn."""
    max_partition_fetch_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500
    """How long the broker may hold a fetch back while it has nothing; Kafka answers as soon as it has something."""
    request_timeout_ms: int = 20_000
    session_timeout_ms: int = 10_000
    """After a crash, the group's other members wait this long for the dead one's partitions."""
    heartbeat_interval_ms: int = 3_000
    metadata_max_age_ms: int = 30_000
    """New partitions are found within this time."""
    group_instance_id: str | None = None
    commit_timeout_s: float = 30.0
    """A commit that the broker does not take for this long ends the stream, which is then opened anew."""
    revoke_timeout_s: float = 5.0
    """When partitions move to another member, messages in flight may still be advanced for this long."""

    @classmethod
    def from_mapping(cls, connection: str, settings: Mapping[str, Any]) -> Self:
        """Check a connection's settings.

        Raises:
            ConfigurationError: An unknown key (the message names the nearest), a missing or unusable value.
        """
        where = f"[connections.{connection}]"
        known = {field.name for field in fields(cls)}
        settings = {_ALIASES.get(key, key): value for key, value in settings.items()}
        for key in settings:
            if key not in known and key != "type":
                nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
                hint = (
                    f"did you mean {nearest[0]!r}?"
                    if nearest
                    else "known: " + ", ".join(sorted(known))
                )
                raise ConfigurationError(f"unknown key {key!r} in {where}", hint=hint)
        hints = get_type_hints(cls)
        values = {
            key: _convert(value, hints[key], f"{key} in {where}")
            for key, value in settings.items()
            if key in known
        }
        if not values.get("bootstrap_servers"):
            raise ConfigurationError(
                f"bootstrap_servers is missing in {where}", hint="for example: localhost:9092"
            )
        self = cls(**values)
        self._check(where)
        return self

    def _check(self, where: str) -> None:
        for name, value, allowed in (
            ("security_protocol", self.security_protocol, _PROTOCOLS),
            ("sasl_mechanism", self.sasl_mechanism, _MECHANISMS),
            ("isolation_level", self.isolation_level, ("read_committed", "read_uncommitted")),
        ):
            if value not in allowed:
                raise ConfigurationError(
                    f"{name} in {where} is {value!r}", hint="one of " + ", ".join(allowed)
                )
        if self.security_protocol.startswith("SASL") and self.sasl_mechanism != "GSSAPI":
            for name in ("sasl_plain_username", "sasl_plain_password"):
                if not getattr(self, name):
                    raise ConfigurationError(
                        f"{name} is missing in {where}, which {self.security_protocol} needs",
                        hint="a secret may be given as env:NAME or file:PATH",
                    )
        for name in (
            "max_batch",
            "session_timeout_ms",
            "heartbeat_interval_ms",
            "request_timeout_ms",
        ):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} in {where} must be above 0")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms in {where} must be below session_timeout_ms",
                hint="a third of it is usual",
            )
        if (self.max_deliveries or 0) < 0:
            raise ConfigurationError(
                f"max_deliveries in {where} must not be negative", hint="0: no limit"
            )

    def dead_letter_topic_of(self, topic: str) -> str:
        return self.dead_letter_topic.replace("{topic}", topic)

    def client_arguments(self) -> dict[str, Any]:
        """What consumer, producer and client of aiokafka have in common.

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
        if self.security_protocol.startswith("SASL"):
            arguments["sasl_mechanism"] = self.sasl_mechanism
            arguments["sasl_plain_username"] = self.sasl_plain_username
            arguments["sasl_plain_password"] = self.sasl_plain_password
        if self.security_protocol.endswith("SSL"):
            arguments["ssl_context"] = self._ssl_context()
        return arguments

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


def _convert(value: Any, hint: Any, what: str) -> Any:
    """Bring a setting to its type; environment variables are all text."""
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if NoneType in options and (value is None or value in ("", "none")):
        return None
    kind = next(option for option in options if option is not NoneType)
    if kind is str and isinstance(value, list):
        return ",".join(map(str, value))
    if kind is bool:
        text = str(value).lower()
        if text not in _TRUE + _FALSE:
            raise ConfigurationError(f"{what} is {value!r}", hint="true or false")
        return text in _TRUE
    if kind in (int, float) and not isinstance(value, bool):
        try:
            return kind(value)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{what} is {value!r}", hint="a number is needed") from error
    if not isinstance(value, kind):
        raise ConfigurationError(f"{what} is {value!r}", hint=f"{kind.__name__} is needed")
    return value
