"""Decodes each value by the schema that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from triggerer.abc import BrokerMessage, get_connection
from triggerer.errors import PluginError
from triggerer.pluginkit.schemas.registry import Reader, SchemaRegistry

_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "avro": ("AVRO", "avro"),
    "jsonschema": ("JSON", "json_schema"),
    "protobuf": ("PROTOBUF", "protobuf"),
}
_HEAD: Final = 5


class RegistryDecoder:
    """Decodes the messages of one trigger by their schemas. Looks up each schema once.

    Args:
        name: The argument `decode`: "avro", "jsonschema" or "protobuf".
        connection: The connection whose settings name the registry.
    """

    def __init__(self, name: str, connection: str) -> None:
        self.name = name
        self._kind, self._module = _KINDS[name]
        self._connection = connection
        self._registry: SchemaRegistry | None = None
        self._readers: dict[int, Reader] = {}

    async def prepare(self, message: BrokerMessage) -> None:
        """Look up the message's schema if it is not known yet. Await this before `read`.

        Raises:
            ValueError: The message names no schema, a schema of another kind, or an invalid schema. So the message can
                never be read.
            BrokerUnavailable, BrokerRefused: The registry did not return the schema. A later attempt can succeed.
            ConfigurationError: The connection names no registry, or a package is not installed.
            OSError: The Protobuf compiler was stopped. A later attempt can succeed.
        """
        if message.value is None:
            return
        schema_id = _schema_id(message.value)
        if schema_id in self._readers:
            return
        if self._registry is None:
            self._registry = SchemaRegistry(self._connection, get_connection(self._connection))
        if self._kind == "PROTOBUF":
            # Imported here, because only Protobuf needs this module.
            find = import_module("triggerer.pluginkit.schemas.proto_files").find_descriptors
            schema = await find(self._registry, schema_id)
        else:
            schema = await self._registry.get(schema_id)
        if schema.kind != self._kind:
            raise ValueError(f"its schema {schema_id} is of kind {schema.kind}")
        make_reader: Callable[[Any], Reader] = import_module(
            f"triggerer.pluginkit.schemas.{self._module}"
        ).make_reader
        self._readers[schema_id] = make_reader(schema)

    def read(self, message: BrokerMessage) -> Any:
        """Return the value of a prepared message; None if it has no value.

        Raises:
            ValueError: The value does not fit its schema.
        """
        return message.decoded(self.name, self._read)

    def _read(self, message: BrokerMessage) -> Any:
        value = message.value
        if value is None:
            return None
        reader = self._readers.get(_schema_id(value))
        if reader is None:
            raise PluginError(f"{message!r} was not prepared before it was read")
        return reader(value[_HEAD:])

    async def aclose(self) -> None:
        """Close the connections to the registry, and forget all schemas."""
        registry, self._registry = self._registry, None
        self._readers.clear()
        if registry is not None:
            await registry.aclose()


def _schema_id(value: bytes) -> int:
    """Return the id in the wire format's head: a zero byte, then four bytes, big-endian."""
    if len(value) < _HEAD or value[0] != 0:
        raise ValueError("it does not begin with the id of a schema")
    return int.from_bytes(value[1:_HEAD], "big")
