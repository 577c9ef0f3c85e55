"""Where a stream begins in the partitions for which its group has no commit."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from producers.kafka.errors import guarded

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a stream begins in a partition without a commit of its group: a trigger's argument `start`.

    Attributes:
        latest: Read only messages that are published after the stream has first started.
        time: Begin at the first message that was published at this time or later.
        offsets: The offset by topic and partition; a partition that is not named is read from its beginning.
    """

    latest: bool = False
    time: datetime | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Any) -> Start:
        """Read `"earliest"`, `"latest"`, a time (an aware instant, or ISO 8601 text) or `{topic: {partition: offset}}`.

        Raises:
            ValueError: The value has another form.
        """
        if value == "earliest":
            return cls()
        if value == "latest":
            return cls(latest=True)
        if isinstance(value, Mapping) and value:
            return cls(offsets=_offsets(value))
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                value = None
        if not isinstance(value, datetime):
            raise ValueError(
                'it must be "earliest", "latest", a time such as "2026-11-22T06:00:00Z", or offsets such as'
                ' {"orders": {"0": 1200}}'
            )
        if value.tzinfo is None:
            raise ValueError(f"the time {value.isoformat()} needs a zone, such as Z or +02:00")
        return cls(time=value.astimezone(UTC))

    def to_json(self) -> Any:
        """Return the start as a JSON value; equal starts return equal values."""
        if self.time is not None:
            return self.time.isoformat().replace("+00:00", "Z")
        if self.offsets:
            return {
                topic: {str(number): offset for number, offset in sorted(offsets.items())}
                for topic, offsets in sorted(self.offsets.items())
            }
        return "latest" if self.latest else "earliest"

    async def find(
        self, consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition], what: str
    ) -> dict[TopicPartition, int]:
        """Return the offset at which the reading of each partition begins.

        Raises:
            BrokerUnavailable, BrokerRefused: From the brokers. The error's text begins with `what`.
        """
        if not partitions:
            return {}
        wanted = list(partitions)
        found: dict[TopicPartition, int] = {}
        if self.latest:
            return dict(await guarded(consumer.end_offsets(wanted), what))
        if self.time is None:
            first = await guarded(consumer.beginning_offsets(wanted), what)
            found = dict(first)
            if self.offsets:
                last = await guarded(consumer.end_offsets(wanted), what)
                for partition in wanted:
                    found[partition] = self._within(partition, first[partition], last[partition])
            return found
        found = dict(await guarded(consumer.end_offsets(wanted), what))
        # A time before 1970 means the first message, because the client refuses negative times.
        times = dict.fromkeys(wanted, max(int(self.time.timestamp() * 1000), 0))
        at = await guarded(consumer.offsets_for_times(times), what)
        return found | {place: hit.offset for place, hit in at.items() if hit is not None}

    def _within(self, partition: TopicPartition, first: int, end: int) -> int:
        offset = self.offsets.get(partition.topic, {}).get(partition.partition)
        if offset is None:
            return first
        if not first <= offset <= end:
            logger.error(
                "%s has no offset %d to start at: its log begins at %d, and its next message gets %d",
                partition,
                offset,
                first,
                end,
            )
        return min(max(offset, first), end)


def _offsets(value: Mapping[Any, Any]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, offsets in value.items():
        if not isinstance(topic, str) or not isinstance(offsets, Mapping):
            raise ValueError("offsets are written {topic: {partition: offset}}")
        try:
            found[topic] = {int(number): int(offset) for number, offset in offsets.items()}
        except (TypeError, ValueError) as error:
            raise ValueError("partitions and offsets are whole numbers") from error
        if any(number < 0 or offset < 0 for number, offset in found[topic].items()):
            raise ValueError("partitions and offsets are not negative")
    return found
