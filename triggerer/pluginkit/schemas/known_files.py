"""Finds the Protobuf files that come with client libraries, such as google/protobuf/timestamp.proto.

A schema registry does not contain these files, because serializers leave them out when they register a schema.

Source: the function `_is_builtin` of Confluent's clients, with the folders google/protobuf, google/type and confluent.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_GOOGLES: Final = re.compile(r"google/(protobuf|type)/([a-z0-9_]+)\.proto")
_WITH_CONFLUENTS: Final = "confluent_kafka.schema_registry.protobuf"
"""The module whose import registers Confluent's files with Protobuf."""


def find_known_file(name: str) -> FileDescriptorProto | None:
    """Return the well-known Protobuf file of this import name; None if it is unknown or its package is missing."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    try:
        found = _find(name)
    except (ImportError, KeyError):
        return None
    if found is None:
        return None
    file = FileDescriptorProto()
    found.CopyToProto(file)
    return file


def _find(name: str) -> Any:
    if (googles := _GOOGLES.fullmatch(name)) is not None:
        package, file = googles.groups()
        return import_module(f"google.{package}.{file}_pb2").DESCRIPTOR
    if name.startswith("confluent/"):
        from google.protobuf import descriptor_pool

        import_module(_WITH_CONFLUENTS)
        return descriptor_pool.Default().FindFileByName(name)
    return None
