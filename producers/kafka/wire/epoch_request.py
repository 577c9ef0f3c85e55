"""A request that aiokafka lacks. It asks where the log of an earlier leader ends (KIP-101, KIP-320).

Source: https://kafka.apache.org/protocol.html, OffsetForLeaderEpoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

_CONSUMER = -1
_ANY_EPOCH = -1


class EpochEndsResponse(Response):  # type: ignore[misc]
    """OffsetForLeaderEpoch response, version 3."""

    API_KEY = 23
    API_VERSION = 3
    SCHEMA: ClassVar[Schema] = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader_epoch", Int32),
                        ("end_offset", Int64),
                    ),
                ),
            ),
        ),
    )


class EpochEndsRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as the SDK names them
    """OffsetForLeaderEpoch request, version 3."""

    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = EpochEndsResponse
    SCHEMA: ClassVar[Schema] = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class EpochEndsRequest(Request[EpochEndsRequest_v3]):  # type: ignore[misc]
    """Look up, by topic and partition, the offset at which a leader epoch ends. The partition's current leader answers.

    Raises, when it is sent:
        NotImplementedError: The broker does not know this version (before Kafka 2.3).
    """

    API_KEY = 23

    def __init__(self, epochs: Mapping[str, Mapping[int, int]]) -> None:
        self._epochs = epochs

    def build(self, request_struct_class: type[EpochEndsRequest_v3]) -> EpochEndsRequest_v3:
        topics = [
            (topic, [(number, _ANY_EPOCH, epoch) for number, epoch in epochs.items()])
            for topic, epochs in self._epochs.items()
        ]
        return request_struct_class(_CONSUMER, topics)
