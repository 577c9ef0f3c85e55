"""A message as filters see it; it is its own broker payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from producers.kafka.lane import Lane

_NOT_DECODED = object()
_NO_MEMORY = "Not enough memory"


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


class KafkaMessage:
    """One record of a topic. It is decoded once, at the first request, for all subscribers of the stream."""

    __slots__ = ("_json", "delivery", "lane", "record")

    def __init__(self, record: Record, lane: Lane, delivery: int) -> None:
        self.record = record
        self.lane = lane
        self.delivery = delivery
        self._json: Any = _NOT_DECODED

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
    def headers(self) -> tuple[tuple[str, bytes], ...]:
        return tuple(self.record.headers)

    def json(self) -> Any:
        """Return the decoded JSON value; None for a tombstone. It is shared: do not change it.

        Raises:
            ValueError: The value is not JSON.
            MemoryError: It may be.
        """
        decoded = self._json
        if decoded is _NOT_DECODED:
            value = self.record.value
            try:
                decoded = None if value is None else orjson.loads(value)
            except orjson.JSONDecodeError as error:
                # It says so of JSON for which there is no memory, too; such a message must not be rejected.
                if error.msg.startswith(_NO_MEMORY):
                    raise MemoryError(error.msg) from error
                raise
            self._json = decoded
        return decoded

    # Pickled for a filter in another process, without the lane, which only the producer uses.

    def __getstate__(self) -> tuple[Record, int]:
        return self.record, self.delivery

    def __setstate__(self, state: tuple[Record, int]) -> None:
        self.record, self.delivery = state
        self._json = _NOT_DECODED

    def __repr__(self) -> str:
        record = self.record
        return f"<KafkaMessage {record.topic}[{record.partition}]@{record.offset}>"
