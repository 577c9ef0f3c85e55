"""Reads Protobuf messages by their descriptors; no generated code is needed."""

from __future__ import annotations

import base64
from binascii import Error as NotBase64
from typing import Any

from triggerer.pluginkit.schemas.registry import Reader, RegisteredSchema


def make_reader(schema: RegisteredSchema) -> Reader:
    """A reader of the messages of this file.

    Raises:
        ValueError: It is no file's descriptor.
    """
    from google.protobuf import descriptor_pool, json_format, message_factory
    from google.protobuf.message import DecodeError

    pool = descriptor_pool.DescriptorPool()
    try:
        _add_known(pool)
        own = _add(pool, "", schema)
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
        except (DecodeError, IndexError) as error:
            raise ValueError(f"no message of its Protobuf schema: {error!r}") from error
        return json_format.MessageToDict(message, preserving_proto_field_name=True)

    return read


def _add(pool: Any, name: str, schema: RegisteredSchema) -> str:
    from google.protobuf import descriptor_pb2

    for referred_name, referred in schema.references.items():
        _add(pool, referred_name, referred)
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(base64.b64decode(schema.text, validate=True))
    # A registry calls a file "default"; whoever imports it calls it by the name of the reference.
    file.name = name or file.name or "default"
    pool.Add(file)
    return str(file.name)


def _add_known(pool: Any) -> None:
    """The files that come with Protobuf, which no registry has."""
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    for known in (
        any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2,
    ):  # fmt: skip
        file = descriptor_pb2.FileDescriptorProto()
        known.DESCRIPTOR.CopyToProto(file)
        pool.Add(file)


def _message_indexes(data: bytes) -> tuple[list[int], int]:
    """Which message of the file it is, from the outside in, and where it begins.

    Source: "Wire format" in the documentation of Confluent's serializers: the count and the indexes as zigzag varints;
    a count of 0 stands for the first message.
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
