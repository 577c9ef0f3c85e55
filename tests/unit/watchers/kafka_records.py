"""A stand-in for aiokafka's record, and the lane of its partition."""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka import TopicPartition

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Membership

LANE = LaneInFlight(TopicPartition("flights", 3), Membership(1, "me"), CommittedPosition(0))


@dataclass
class Record:
    value: bytes | None
    key: bytes | None = b"k"
    offset: int = 7
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes], ...] = ()
