"""The committed position, and what is kept beside it: in the metadata string of Kafka's own offset commit.

The string is bounded (about 70 bytes; brokers allow 4096), since only the message at the position can have failed:
a commit never passes a failed message, and those behind it are counted from the time when it is their turn.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """Where a partition goes on.

    Attributes:
        offset: The next message to deliver.
        failures: How often that message was delivered and failed; survives restarts.
        topic_id: The topic it was committed for. A topic that is deleted and created again has another.
        partitions: How many partitions the topic had when the group first committed to it. One with a higher number
            was added later: it is read from its beginning whatever `start` says, or a `start="latest"` would lose
            what was written before we noticed the partition.
    """

    offset: int
    failures: int = 0
    topic_id: str | None = None
    partitions: int | None = None

    @property
    def metadata(self) -> str:
        fields: dict[str, object] = {"v": _VERSION}
        if self.topic_id is not None:
            fields["topic"] = self.topic_id
        if self.partitions is not None:
            fields["partitions"] = self.partitions
        if self.failures:
            fields["failures"] = self.failures
        return json.dumps(fields, separators=(",", ":"))

    def moved(self, offset: int, failures: int = 0) -> CommittedPosition:
        """The same topic, another message."""
        return CommittedPosition(offset, failures, self.topic_id, self.partitions)

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> CommittedPosition:
        """Read a commit; one that another program wrote holds an offset and nothing else."""
        if not metadata:
            return cls(offset)
        try:
            fields = json.loads(metadata)
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            # kafka-consumer-groups --reset-offsets and other consumers write what they like; the offset holds.
            logger.info("the commit at offset %d holds foreign metadata; counts start anew", offset)
            return cls(offset)
        failures, topic, partitions = (
            fields.get(name) for name in ("failures", "topic", "partitions")
        )
        return cls(
            offset,
            failures=failures if isinstance(failures, int) else 0,
            topic_id=topic if isinstance(topic, str) else None,
            partitions=partitions if isinstance(partitions, int) else None,
        )
