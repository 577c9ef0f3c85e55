"""A newer version of the fetch request than aiokafka has, written with aiokafka's types.

Version 13 (KIP-516, Kafka 3.1) names topics by their ids; aiokafka ends at version 11. Version 12 (KIP-595) added the
epoch of what was fetched last, which the broker compares with its log.
Source: https://kafka.apache.org/protocol.html, Fetch and the flexible encoding of KIP-482.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from producers.kafka.protocol import Uuid

_NO_SESSION = (0, -1)
_UNKNOWN = -1
_DIVERGING_EPOCH = 0
"""The tag of the field that says where the broker's log parts from what was fetched."""


class FetchByIdResponse(Response):  # type: ignore[misc]
    """Fetch response, version 13."""

    API_KEY = 1
    API_VERSION = 13
    SCHEMA: ClassVar[Schema] = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("highwater_offset", Int64),
                        ("last_stable_offset", Int64),
                        ("log_start_offset", Int64),
                        (
                            "aborted_transactions",
                            CompactArray(
                                ("producer_id", Int64),
                                ("first_offset", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("preferred_read_replica", Int32),
                        ("message_set", CompactBytes),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class FetchByIdRequest_v13(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as the SDK names them
    """Fetch request, version 13."""

    FLEXIBLE_VERSION = True
    API_KEY = 1
    API_VERSION = 13
    RESPONSE_TYPE = FetchByIdResponse
    SCHEMA: ClassVar[Schema] = Schema(
        ("replica_id", Int32),
        ("max_wait_time", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            CompactArray(
                ("topic_id", Uuid),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("fetch_offset", Int64),
                        ("last_fetched_epoch", Int32),
                        ("log_start_offset", Int64),
                        ("max_bytes", Int32),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        (
            "forgotten_topics_data",
            CompactArray(
                ("topic_id", Uuid), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
            ),
        ),
        ("rack_id", CompactString("utf-8")),
        ("tags", TaggedFields),
    )


@dataclass(frozen=True, slots=True)
class WantedPartition:
    """What is asked of one partition. `last_epoch`: of the message before `offset`; None asks for no comparison."""

    partition: int
    offset: int
    max_bytes: int
    last_epoch: int | None


class FetchByIdRequest(Request[FetchByIdRequest_v13]):  # type: ignore[misc]
    """One of aiokafka's fetch requests, with the topics named by their ids.

    Raises, when it is sent:
        NotImplementedError: The broker is older than Kafka 3.1.
    """

    API_KEY = 1

    def __init__(self, request: FetchRequest, topics: dict[bytes, list[WantedPartition]]) -> None:
        self._request: Any = request
        self._topics = topics

    def build(self, request_struct_class: type[FetchByIdRequest_v13]) -> FetchByIdRequest_v13:
        request = self._request
        topics: list[tuple[Any, ...]] = [
            (topic_id, [_fields(partition) for partition in partitions], {})
            for topic_id, partitions in self._topics.items()
        ]
        return request_struct_class(
            _UNKNOWN,  # replica_id: a consumer
            request._max_wait_ms,  # noqa: SLF001 - aiokafka gives it no other name
            request._min_bytes,  # noqa: SLF001
            request._max_bytes,  # noqa: SLF001
            request._isolation_level,  # noqa: SLF001
            *_NO_SESSION,
            topics,
            [],
            request._rack_id,  # noqa: SLF001
            {},
        )


def _fields(wanted: WantedPartition) -> tuple[Any, ...]:
    epoch = _UNKNOWN if wanted.last_epoch is None else wanted.last_epoch
    return wanted.partition, _UNKNOWN, wanted.offset, epoch, _UNKNOWN, wanted.max_bytes, {}


class Divergence(NamedTuple):
    """Where a broker's log parts from what was read: what it has of leaders up to `epoch` ends at `end_offset`."""

    epoch: int
    end_offset: int


def divergence(tags: dict[int, bytes]) -> Divergence | None:
    """Return what a partition's answer says of a log that was cut; None if it says nothing."""
    field = tags.get(_DIVERGING_EPOCH)
    if field is None:
        return None
    data = BytesIO(field)
    return Divergence(Int32.decode(data), Int64.decode(data))
