"""A newer version of the metadata request than aiokafka has, written with aiokafka's types.

Topic ids (KIP-516) came with version 10; aiokafka ends at version 5. The id distinguishes a topic from a deleted one of
the same name.
Source: https://kafka.apache.org/protocol.html, Metadata and the flexible encoding of KIP-482.
"""

from __future__ import annotations

from io import BytesIO
from typing import ClassVar

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)


class Uuid(AbstractType[bytes]):  # type: ignore[misc]
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(16)

    @classmethod
    def repr(cls, value: bytes) -> str:
        return value.hex()


class DescribeTopicsResponse(Response):  # type: ignore[misc]
    """Metadata response, version 10."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA: ClassVar[Schema] = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class DescribeTopicsRequest_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as the SDK names them
    """Metadata request, version 10."""

    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = DescribeTopicsResponse
    SCHEMA: ClassVar[Schema] = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class DescribeTopicsRequest(Request[DescribeTopicsRequest_v10]):  # type: ignore[misc]
    """Look up topics, without creating missing ones.

    Raises, when it is sent:
        NotImplementedError: The broker has no topic ids (before Kafka 2.8).
    """

    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(
        self, request_struct_class: type[DescribeTopicsRequest_v10]
    ) -> DescribeTopicsRequest_v10:
        no_id = bytes(16)
        return request_struct_class(
            [(no_id, topic, {}) for topic in self._topics], False, False, False, {}
        )
