"""The settings of a Kafka connection, checked before anything connects.

Imported when a connection is opened, not with the watchers: pydantic would take a good part of the time that it takes
to parse a DAG file.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from triggerer.errors import ConfigurationError

_ALIASES: Final = {"sasl_username": "sasl_plain_username", "sasl_password": "sasl_plain_password"}


def _unset(value: Any) -> Any:
    """Return None for the text by which an environment variable says so."""
    return None if value in ("", "none") else value


def _joined(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


OptionalText = Annotated[str | None, BeforeValidator(_unset)]
OptionalLimit = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_unset)]
Positive = Annotated[int, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """`[connections.<id>]` of a Kafka cluster. Every field is a key of that section."""

    bootstrap_servers: Annotated[str, Field(min_length=1), BeforeValidator(_joined)]
    client_id: str = "triggerer"
    client_rack: OptionalText = None

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] = "PLAIN"
    sasl_plain_username: OptionalText = None
    sasl_plain_password: OptionalText = field(default=None, repr=False)
    sasl_kerberos_service_name: str = "kafka"
    sasl_kerberos_domain_name: OptionalText = None
    ssl_cafile: OptionalText = None
    ssl_certfile: OptionalText = None
    ssl_keyfile: OptionalText = None
    ssl_password: OptionalText = field(default=None, repr=False)
    ssl_check_hostname: bool = True

    max_deliveries: OptionalLimit = 10
    """Failed deliveries of a message after which it is dead-lettered; 0 or None: it is redelivered for ever."""
    dead_letter_topic: str = "{topic}.dead-letter"
    redelivery_delay_s: float = 0.5
    """The first redelivery comes after at most this long; each further one after up to twice as long."""
    redelivery_delay_max_s: float = 60.0

    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    max_batch: Positive = 500
    """Messages taken from the client at once; between batches other work on the event loop gets its turn."""
    fetch_max_bytes: Positive = 16 << 20
    """The most that a broker returns to one request, over all partitions. A single larger message is returned alone."""
    max_partition_fetch_bytes: Positive = 1 << 20
    """The same for one partition. The client holds one answer for each partition, and asks for more of a partition only
    when the stream has taken that: so it buffers at most this much for each, more where messages are compressed."""
    fetch_max_wait_ms: int = 500
    """How long the broker may hold a fetch back while it has nothing; Kafka answers as soon as it has something."""
    request_timeout_ms: Positive = 20_000
    session_timeout_ms: Positive = 10_000
    """After a crash, the group's other members wait this long for the dead one's partitions."""
    heartbeat_interval_ms: Positive = 3_000
    metadata_max_age_ms: int = 30_000
    """New partitions are found within this time."""
    group_instance_id: OptionalText = None
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
        known = [item.name for item in fields(cls)]
        values = {_ALIASES.get(key, key): item for key, item in settings.items() if key != "type"}
        for key in values:
            if key not in known:
                raise ConfigurationError(
                    f"unknown key {key!r} in {where}", hint=_nearest(key, known)
                )
        try:
            self: Self = _ADAPTER.validate_python(values)
        except ValidationError as error:
            # Not as its cause: pydantic's own text has the value in it.
            raise _refusal(error.errors()[0], where) from None
        self._check(where)
        return self

    def _check(self, where: str) -> None:
        """Refuse values that do not go together."""
        if self.security_protocol.startswith("SASL") and self.sasl_mechanism != "GSSAPI":
            for name in ("sasl_plain_username", "sasl_plain_password"):
                if not getattr(self, name):
                    raise ConfigurationError(
                        f"{name} is missing in {where}, which {self.security_protocol} needs",
                        hint="a secret may be given as env:NAME or file:PATH",
                    )
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_interval_ms in {where} must be below session_timeout_ms",
                hint="a third of it is usual",
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

    def reading_arguments(self) -> dict[str, Any]:
        """What consumers have in common, in a group or not.

        Raises:
            ConfigurationError: A certificate or key cannot be read.
        """
        return self.client_arguments() | {
            "client_rack": self.client_rack,
            "enable_auto_commit": False,
            # We find the positions ourselves, and log if one has expired.
            "auto_offset_reset": "none",
            "isolation_level": self.isolation_level,
            "fetch_min_bytes": 1,
            "fetch_max_wait_ms": self.fetch_max_wait_ms,
            "fetch_max_bytes": self.fetch_max_bytes,
            "max_partition_fetch_bytes": self.max_partition_fetch_bytes,
        }

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


_ADAPTER: Final[TypeAdapter[Any]] = TypeAdapter(KafkaSettings)


def _nearest(key: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]!r}?" if nearest else "known: " + ", ".join(sorted(known))


def _refusal(error: ErrorDetails, where: str) -> ConfigurationError:
    """Say what is wrong with a value, to whoever writes the TOML file; a password is not shown."""
    key = str(error["loc"][0])
    shown = "***" if "password" in key else repr(error["input"])
    wrong, hint = f"{key} in {where} is {shown}", "a number is needed"
    match error["type"]:
        case "missing" | "string_too_short":
            wrong, hint = f"{key} is missing in {where}", "for example: localhost:9092"
        case "greater_than":
            return ConfigurationError(f"{key} in {where} must be above 0")
        case "greater_than_equal":
            wrong, hint = f"{key} in {where} must not be negative", "0: no limit"
        case "literal_error":
            hint = "one of " + error["ctx"]["expected"].replace("'", "")
        case "string_type":
            hint = "str is needed"
        case "int_from_float":
            hint = "a whole number is needed"
        case "bool_parsing" | "bool_type":
            hint = "true or false"
    return ConfigurationError(wrong, hint=hint)
