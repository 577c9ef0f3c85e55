"""Defines the settings of all brokers' connections, and checks them before anything connects.

Import this module only inside the functions that open a connection. It imports pydantic, which is slow. If a module
that defines triggers imported it at the top, every DAG file would wait for pydantic.
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
    """Return None for the texts that mean None in an environment variable."""
    return None if value in ("", "none") else value


OptionalText = Annotated[str | None, BeforeValidator(_unset)]
OptionalLimit = Annotated[Annotated[int, Field(ge=0)] | None, BeforeValidator(_unset)]
Positive = Annotated[int, Field(gt=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """The settings under `[connections.<id>]`. A subclass is a dataclass (frozen, slots, kw_only).

    Each field of the subclass is a key of the section. Declare a secret with `field(repr=False)`, so that errors do not
    show its value. References to secrets (`env:NAME` or `file:PATH`) are resolved before the values are checked.
    """

    aliases: ClassVar[Mapping[str, str]] = {}
    """Maps alternative names of keys to the keys' own names."""
    examples: ClassVar[Mapping[str, str]] = {}
    """An example value of each key. An error about a missing key shows its example."""
    optional: ClassVar[str | None] = None
    """The id of a connection that needs no section, because each key has a default. None: each id needs a section."""

    @classmethod
    def load(cls, connection: str) -> Self:
        """Load a connection's settings from the service's configuration.

        Raises:
            ConfigurationError: `from_mapping` refuses the settings, the connection is missing and not `optional`, or a
                secret cannot be read.
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
        """Return a connection's settings as an object of this class, after checking them.

        Raises:
            ConfigurationError: A key is unknown (the hint names known keys), or a value is missing or unusable.
        """
        where = f"[connections.{connection}]"
        known = [item.name for item in fields(cls)]
        values = {
            cls.aliases.get(key, key): item for key, item in settings.items() if key != "type"
        }
        for key in values:
            if key not in known:
                # If no known key is similar, `hint` lists all known keys. With more than 20 keys, `hint` returns None.
                # Then name only the nearest key.
                closest = f"the nearest key is {nearest(key, known, cutoff=0)!r}"
                raise ConfigurationError(
                    f"unknown key {key!r} in {where}", hint=hint(key, known) or closest
                )
        try:
            adapter: TypeAdapter[Self] = TypeAdapter(cls)
            self = adapter.validate_python(values)
        except ValidationError as error:
            # `from None`: the text of pydantic's error contains the value, which may be a secret.
            raise cls._refusal(error.errors()[0], where) from None
        self.check(where)
        return self

    def check(self, where: str) -> None:
        """Refuse contradictory values. `where` names the section in messages: `… is missing in {where}`.

        Raises:
            ConfigurationError: The values contradict one another.
        """

    @classmethod
    def _refusal(cls, error: ErrorDetails, where: str) -> ConfigurationError:
        """Describe a wrong value in the words of the TOML file, without showing a secret."""
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
                hint = "a text is needed"
            case "dict_type":
                hint = f'a table is needed: {key} = {{ name = "value" }}'
            case "int_from_float":
                hint = "a whole number is needed"
            case "bool_parsing" | "bool_type":
                hint = "true or false"
        return ConfigurationError(wrong, hint=hint or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverySettings(ConnectionSettings):
    """The keys of the delivery policy, which all brokers share; see `triggerer.pluginkit.delivery`."""

    max_deliveries: OptionalLimit = 10
    """After this number of failed deliveries, a message is dead-lettered. 0 or None: it is redelivered for ever."""
    redelivery_delay_s: float = 0.5
    """The limit of the random delay before a first redelivery. The limit doubles with each further redelivery."""
    redelivery_delay_max_s: float = 60.0
    """The limit of the random delay does not grow beyond this number of seconds."""

    def delivery_policy(self) -> DeliveryPolicy:
        return DeliveryPolicy(
            max_deliveries=self.max_deliveries or None,
            redelivery_delay_s=self.redelivery_delay_s,
            redelivery_delay_max_s=self.redelivery_delay_max_s,
        )
