"""Reads Protobuf messages by their descriptors, without generated code."""

from __future__ import annotations

import base64
from binascii import Error as NotBase64
from typing import Any, Final

from triggerer.pluginkit.schemas.known_files import find_known_file
from triggerer.pluginkit.schemas.registry import Reader, RegisteredSchema

_WITHOUT_IMPORT: Final = tuple(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)
"""Files that each reader gets, because an `Any` may contain their messages even if the schema does not import them."""


def make_reader(schema: RegisteredSchema) -> Reader:
    """Return a reader of the messages that a Protobuf file defines.

    Raises:
        ValueError: The schema is no descriptor of a file.
    """
    from google.protobuf import descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        own = _add(pool, "", schema)
        for name in _WITHOUT_IMPORT:
            _add_known(pool, name)
        file = pool.FindFileByName(own)
    except (DecodeError, KeyError, NotBase64, TypeError, ValueError) as error:
        raise ValueError(f"no descriptor of a Protobuf file: {error!r}") from error
    types = list(file.message_types_by_name.values())

    def read(data: bytes) -> Any:
        indexes, begin = _message_indexes(data)
        try:
            found = types[indexes[0]]
            for index in indexes[1:]:
                found = found.nested_types[index]
            message = message_factory.GetMessageClass(found)()
            message.ParseFromString(data[begin:])
            return json_format.MessageToDict(
                message, preserving_proto_field_name=True, descriptor_pool=pool
            )
        # `MessageToDict` raises TypeError for an `Any` whose type is not in this schema, and json_format.Error for a
        # timestamp out of range.
        except (DecodeError, IndexError, TypeError, ValueError, json_format.Error) as error:
            raise ValueError(f"no message of its Protobuf schema: {error!r}") from error

    return read


def _add(pool: Any, name: str, schema: RegisteredSchema) -> str:
    from google.protobuf import descriptor_pb2

    for referred_name, referred in schema.references.items():
        _add(pool, referred_name, referred)
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(base64.b64decode(schema.text, validate=True))
    # A registry may name every file "default". But other files import this file by the name of
    # their reference to it, which is `name`.
    file.name = name or file.name or "default"
    for imported in file.dependency:
        _add_known(pool, imported)
    pool.Add(file)
    return str(file.name)


def _add_known(pool: Any, name: str) -> None:
    """Add a well-known file with its imports, if the schema does not contain it."""
    try:
        pool.FindFileByName(name)
    except KeyError:
        if (file := find_known_file(name)) is None:
            return
        for imported in file.dependency:
            _add_known(pool, imported)
        pool.Add(file)


def _message_indexes(data: bytes) -> tuple[list[int], int]:
    """Return the indexes of the message's type in its `.proto` file, and the position where the message begins.

    The data begins with the count of the indexes, and then the indexes, all as zigzag varints. A
    count of 0 stands for the first message. Source: "Wire format" in the documentation of
    Confluent's serializers.
    """
    count, position = _varint(data, 0)
    indexes = []
    for _ in range(count):
        index, position = _varint(data, position)
        indexes.append(index)
    if count < 0 or any(index < 0 for index in indexes):
        raise ValueError("the message's indexes are negative")
    return indexes or [0], position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("the message's indexes are cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
