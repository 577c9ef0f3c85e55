"""Reads Avro values."""

from __future__ import annotations

import base64
import io
import json
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from triggerer.pluginkit.schemas.registry import Reader, RegisteredSchema


def make_reader(schema: RegisteredSchema) -> Reader:
    """Return a reader of values that were written with this schema.

    Raises:
        ValueError: The schema is no Avro schema.
    """
    import fastavro
    from fastavro.schema import SchemaParseException, UnknownType

    named: dict[str, Any] = {}
    try:
        for referred in _in_order(schema):
            fastavro.parse_schema(json.loads(referred.text), named_schemas=named)
        parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
    except (SchemaParseException, UnknownType, TypeError, ValueError) as error:
        raise ValueError(f"no Avro schema: {error!r}") from error

    def read(data: bytes) -> Any:
        stream = io.BytesIO(data)
        try:
            plain = _plain(fastavro.schemaless_reader(stream, parsed, None))
        # ArithmeticError: a time beyond the calendar. RecursionError: lists that are nested thousands deep.
        except (
            ArithmeticError, EOFError, LookupError, RecursionError, TypeError, ValueError,
        ) as error:  # fmt: skip
            raise ValueError(f"no value of its Avro schema: {error!r}") from error
        if stream.read(1):
            raise ValueError("no value of its Avro schema: there are extra bytes at the end")
        return plain

    return read


def _in_order(schema: RegisteredSchema) -> list[RegisteredSchema]:
    """Return the referenced schemas, each after its own references."""
    found: list[RegisteredSchema] = []
    for referred in schema.references.values():
        found += [one for one in (*_in_order(referred), referred) if one not in found]
    return found


def _plain(value: Any) -> Any:
    """Return the value in JSON's types: bytes as base64, times in ISO 8601, decimals and UUIDs as text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    return value
