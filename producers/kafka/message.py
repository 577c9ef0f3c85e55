"""A message as filters see it; it is its own broker payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import orjson
from aiokafka import TopicPartition

from producers.kafka.cluster import Membership
from producers.kafka.lane import Lane
from producers.kafka.position import CommittedPosition
from triggerer.abc import BrokerMessage

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Record(Protocol):
    """The part of aiokafka's records that is used."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
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
    """A record that was dumped."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class KafkaMessage(BrokerMessage):
    """One record of a topic. It is decoded once, at the first request, for all subscribers of the stream.

    A broker's message whose fields are read from the client's record when they are asked for: most are looked at by
    nobody. How often Kafka has delivered one is known of a partition's oldest message only, so `deliveries` is None.
    """

    __slots__ = ("delivery", "lane", "record")

    def __init__(self, record: Record, lane: Lane, delivery: int) -> None:
        self.record = record
        self.lane = lane
        self.delivery = delivery
        self.forget_decoded()

    # The base class is compared by its fields, which are not kept here.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def partition(self) -> int:
        return self.record.partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, as the record carries them."""
        return self.record.timestamp

    @property
    def key(self) -> bytes | None:
        return self.record.key

    @property
    def value(self) -> bytes | None:
        """None: a tombstone."""
        return self.record.value

    @property
    def attributes(self) -> Mapping[str, bytes]:
        """The headers; the last of several with the same name. One may be without content (None)."""
        return dict(self.record.headers)

    @property
    def position(self) -> Mapping[str, Any]:
        record = self.record
        return {"topic": record.topic, "partition": record.partition, "offset": record.offset}

    @property
    def published_at(self) -> datetime | None:
        timestamp = self.record.timestamp
        return None if timestamp < 0 else _EPOCH + timedelta(milliseconds=timestamp)

    @property
    def deliveries(self) -> None:
        return None

    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return tuple(self.record.headers)

    def dump(self) -> bytes:
        """The message and what its idempotency key is made of: a line of JSON, and the contents that it sizes."""
        record = self.record
        contents = [record.key, record.value, *(content for _, content in record.headers)]
        head = {
            "v": _DUMP_VERSION,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "headers": [name for name, _ in record.headers],
            "sizes": [None if content is None else len(content) for content in contents],
            # A commit forgets the cuts that it has passed. The message keeps its key.
            "lane": replace(self.lane.committed, used=self.lane.used).metadata,
        }
        return b"".join((orjson.dumps(head), b"\n", *(content or b"" for content in contents)))

    @classmethod
    def load(cls, data: bytes) -> KafkaMessage:
        """The message that was dumped. It is of no assignment.

        Raises:
            ValueError: These are no bytes of `dump`, or of a later version of it.
        """
        line, _, rest = data.partition(b"\n")
        try:
            head = orjson.loads(line)
            if head["v"] != _DUMP_VERSION:
                raise ValueError(f"version {head['v']} is not known")
            contents: list[bytes | None] = []
            if sum(size or 0 for size in head["sizes"]) != len(rest):
                raise ValueError("it is not complete, or not alone")
            for size in head["sizes"]:
                contents.append(None if size is None else rest[:size])
                rest = rest[size or 0 :]
            key, value, *headers = contents
            offset = int(head["offset"])
            # A header may be without content, whatever the client's types say.
            named: Any = tuple(zip(head["headers"], headers, strict=True))
            record = _LoadedRecord(
                head["topic"], head["partition"], offset, head["timestamp"], key, value, named
            )
            lane = Lane(
                TopicPartition(record.topic, record.partition),
                Membership(-1, ""),
                CommittedPosition.parse(offset, head["lane"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no dump of a Kafka message: {error}") from error
        lane.close()
        return cls(record, lane, lane.delivery)

    # Pickled for a filter in another process, without the lane, which only the producer uses.

    def __getstate__(self) -> tuple[Record, int]:
        return self.record, self.delivery

    def __setstate__(self, state: tuple[Record, int]) -> None:
        self.record, self.delivery = state
        self.forget_decoded()

    def __repr__(self) -> str:
        record = self.record
        return f"<KafkaMessage {record.topic}[{record.partition}]@{record.offset}>"
