"""The Kafka message that filters receive. The producer yields it both as the event and as the broker payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import orjson
from aiokafka import TopicPartition

from producers.kafka.in_flight import LaneInFlight
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Membership
from triggerer.abc import BrokerMessage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_OF_TIME_MS: Final = 253_402_300_800_000
"""The beginning of the year 10000, which a `datetime` cannot represent, in milliseconds since 1970."""


class Record(Protocol):
    """The fields of aiokafka's records that we read."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


_DUMP_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class _LoadedRecord:
    """A record that was loaded from a dump, or sent to another process."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def _lane_of_no_assignment(partition: TopicPartition, position: CommittedPosition) -> LaneInFlight:
    lane = LaneInFlight(partition, Membership(-1, ""), position)
    lane.close()
    return lane


class KafkaMessage(BrokerMessage):
    """One record of a topic. Its value is decoded when a subscriber first needs it, once for all subscribers.

    The message does not hold the client's record, which is several times its size. `deliveries` is None, because Kafka
    counts no deliveries.
    """

    __slots__ = ("delivery", "headers", "lane", "offset", "timestamp")

    lane: LaneInFlight
    delivery: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch, as the record carries them."""
    headers: Sequence[tuple[str, bytes]]

    def __init__(self, record: Record, lane: LaneInFlight, delivery: int) -> None:
        _set_lane(self, lane)
        _set_delivery(self, delivery)
        _set_offset(self, record.offset)
        _set_timestamp(self, record.timestamp)
        _set_headers(self, record.headers)
        _set_key(self, record.key)
        # None: a tombstone.
        _set_value(self, record.value)
        self.forget_decoded()

    # Compare by identity: the base class compares fields that this class does not store.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def topic(self) -> str:
        topic: str = self.lane.partition.topic
        return topic

    @property
    def partition(self) -> int:
        number: int = self.lane.partition.partition
        return number

    @property
    def attributes(self) -> Mapping[str, bytes]:
        """The headers. If several have the same name, the last one counts. A header may have no content (None)."""
        return dict(self.headers)

    @property
    def position(self) -> Mapping[str, Any]:
        topic, partition = self.lane.partition
        return {"topic": topic, "partition": partition, "offset": self.offset}

    @property
    def published_at(self) -> datetime | None:
        timestamp = self.timestamp
        # Some writers send timestamps in another unit than milliseconds. The number can be too large for a `datetime`.
        is_time = 0 <= timestamp < _END_OF_TIME_MS
        return _EPOCH + timedelta(milliseconds=timestamp) if is_time else None

    @property
    def deliveries(self) -> None:
        return None

    def dump(self) -> bytes:
        """Return the message as bytes: a line of JSON with sizes, then the contents of key, value and headers."""
        contents = [self.key, self.value, *(content for _, content in self.headers)]
        head = {
            "v": _DUMP_VERSION,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "headers": [name for name, _ in self.headers],
            "sizes": [None if content is None else len(content) for content in contents],
            # Store all cuts that the lane knew, because the idempotency key depends on them. `committed` may lack some:
            # it drops a cut once the position is past the cut.
            "lane": replace(self.lane.committed, used=self.lane.used).metadata,
        }
        return b"".join((orjson.dumps(head), b"\n", *(content or b"" for content in contents)))

    @classmethod
    def load(cls, data: bytes) -> KafkaMessage:
        """Return the message that was dumped. It belongs to no assignment, so it cannot be advanced.

        Raises:
            ValueError: These bytes were written by a later release, or not by `dump`.
        """
        line, _, rest = data.partition(b"\n")
        try:
            head = orjson.loads(line)
            if head["v"] != _DUMP_VERSION:
                raise ValueError(f"version {head['v']} is not known")
            contents: list[bytes | None] = []
            if sum(size or 0 for size in head["sizes"]) != len(rest):
                raise ValueError("its contents are shorter or longer than it says")
            for size in head["sizes"]:
                contents.append(None if size is None else rest[:size])
                rest = rest[size or 0 :]
            key, value, *headers = contents
            offset = int(head["offset"])
            # A header may have no content, although the client's types deny it.
            named: Any = tuple(zip(head["headers"], headers, strict=True))
            record = _LoadedRecord(offset, head["timestamp"], key, value, named)
            partition = TopicPartition(head["topic"], head["partition"])
            lane = _lane_of_no_assignment(partition, CommittedPosition.parse(offset, head["lane"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no dump of a Kafka message: {error}") from error
        return cls(record, lane, lane.delivery)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message for a filter in another process, without the parts that only the producer uses."""
        content = (self.offset, self.timestamp, self.key, self.value, tuple(self.headers))
        return _from_another_process, (self.lane.partition, content, self.delivery)

    def __repr__(self) -> str:
        return f"<KafkaMessage {self.topic}[{self.partition}]@{self.offset}>"


# Messages are frozen, so their constructor cannot assign fields directly. It sets the slots with
# these setters, which take half the time of `object.__setattr__`.
_set_lane: Final = vars(KafkaMessage)["lane"].__set__
_set_delivery: Final = vars(KafkaMessage)["delivery"].__set__
_set_offset: Final = vars(KafkaMessage)["offset"].__set__
_set_timestamp: Final = vars(KafkaMessage)["timestamp"].__set__
_set_headers: Final = vars(KafkaMessage)["headers"].__set__
_set_key: Final = vars(BrokerMessage)["key"].__set__
_set_value: Final = vars(BrokerMessage)["value"].__set__


def _from_another_process(
    partition: TopicPartition, content: tuple[Any, ...], delivery: int
) -> KafkaMessage:
    record = _LoadedRecord(*content)
    lane = _lane_of_no_assignment(partition, CommittedPosition(record.offset))
    return KafkaMessage(record, lane, delivery)
