"""The settings of a connection, checked before anything connects; one way for all brokers.

Imported when a connection is opened, not with the watchers: pydantic would take a good part of the time that it takes
to parse a DAG file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from triggerer.abc import get_connection
from triggerer.errors import ConfigurationError, UnknownConnection
from triggerer.nearest import hint, nearest
from triggerer.pluginkit.delivery import DeliveryPolicy

__all__ = [
    "ConnectionSettings",
    "DeliverySettings",
    "OptionalLimit",
    "OptionalText",
    "Positive",
    "PositiveSeconds",
]


def _unset(value: Any) -> Any:
    """Return None for the text by which an environment variable says so."""
    return None if value in ("", "none") else value


OptionalText = Annotated[str | None, BeforeValidator(_unset)]
OptionalLimit = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_unset)]
Positive = Annotated[int, Field(gt=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """`[connections.<id>]`. A subclass is a dataclass (frozen, slots, kw_only); each of its fields is a key there.

    A secret is a field with `field(repr=False)`: its value is in no error either. Secrets that are written as
    `env:NAME` or `file:PATH` have been resolved before.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names of keys."""
    examples: ClassVar[Mapping[str, str]] = {}
    """What a key that is missing might look like."""
    optional: ClassVar[str | None] = None
    """The connection whose section may be left out: all keys then have their defaults. None: none may."""

    @classmethod
    def load(cls, connection: str) -> Self:
        """The settings of a connection in the service's configuration.

        Raises:
            ConfigurationError: As `from_mapping`; there is no such connection, and it is not `optional`; or a secret
                cannot be read.
        """
        try:
            settings = get_connection(connection)
        except UnknownConnection:
            if connection != cls.optional:
                raise
            settings = {}
        return cls.from_mapping(connection, settings)

    @classmethod
    def from_mapping(cls, connection: str, settings: Mapping[str, Any]) -> Self:
        """Check a connection's settings.

        Raises:
            ConfigurationError: An unknown key (the message names the nearest), a missing or unusable value.
        """
        where = f"[connections.{connection}]"
        known = [item.name for item in fields(cls)]
        values = {
            cls.aliases.get(key, key): item for key, item in settings.items() if key != "type"
        }
        for key in values:
            if key not in known:
                # A section with many keys names the nearest one, however far it is: the list would fill the screen.
                closest = f"the nearest key is {nearest(key, known, cutoff=0)!r}"
                raise ConfigurationError(
                    f"unknown key {key!r} in {where}", hint=hint(key, known) or closest
                )
        try:
            adapter: TypeAdapter[Self] = TypeAdapter(cls)
            self = adapter.validate_python(values)
        except ValidationError as error:
            # Not as its cause: pydantic's own text has the value in it.
            raise cls._refusal(error.errors()[0], where) from None
        self.check(where)
        return self

    def check(self, where: str) -> None:
        """Refuse values that do not go together. `where` begins the sentence: `… is missing in {where}`.

        Raises:
            ConfigurationError: They do not.
        """

    @classmethod
    def _refusal(cls, error: ErrorDetails, where: str) -> ConfigurationError:
        """Say what is wrong with a value, to whoever writes the TOML file; a secret is not shown."""
        key = str(error["loc"][0])
        secret = any(item.name == key and not item.repr for item in fields(cls))
        shown = "***" if secret else repr(error["input"])
        wrong, hint = f"{key} in {where} is {shown}", "a number is needed"
        match error["type"]:
            case "missing" | "string_too_short":
                example = cls.examples.get(key)
                wrong = f"{key} is missing in {where}"
                hint = "" if example is None else f"for example: {example}"
            case "greater_than":
                return ConfigurationError(f"{key} in {where} must be above {error['ctx']['gt']}")
            case "greater_than_equal":
                wrong, hint = f"{key} in {where} must not be negative", "0: no limit"
            case "literal_error":
                hint = "one of " + error["ctx"]["expected"].replace("'", "")
            case "string_type":
                hint = "str is needed"
            case "dict_type":
                hint = f'a table is needed: {key} = {{ name = "value" }}'
            case "int_from_float":
                hint = "a whole number is needed"
            case "bool_parsing" | "bool_type":
                hint = "true or false"
        return ConfigurationError(wrong, hint=hint or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings(ConnectionSettings):
    """The delivery policy's keys, the same for each broker; `triggerer.pluginkit.delivery` says what they mean."""

    max_deliveries: OptionalLimit = 10
    """Failed deliveries of a message after which it is dead-lettered; 0 or None: it is redelivered for ever."""
    redelivery_delay_s: float = 0.5
    """The first redelivery comes after at most this long; each further one after up to twice as long."""
    redelivery_delay_max_s: float = 60.0

    def delivery_policy(self) -> DeliveryPolicy:
        return DeliveryPolicy(
            max_deliveries=self.max_deliveries or None,
            redelivery_delay_s=self.redelivery_delay_s,
            redelivery_delay_max_s=self.redelivery_delay_max_s,
        )
