"""The committed position of a partition, with the data that is kept in the metadata of Kafka's offset commit.

The metadata is bounded (about 80 bytes, and some more after a log was cut; brokers allow 4096), since it counts the
failures of one message: a commit never passes a failed message, and failures of later ones are not counted before.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import NamedTuple

logger = logging.getLogger(__name__)

_VERSION = 1


class UsedOffsets(NamedTuple):
    """Offsets that a cut log uses again: from the cut, at `since`, up to `below`, messages may have been read before.

    `epoch` is of the leader whose messages were lost. It tells the keys of the new ones from theirs.
    """

    since: int
    below: int
    epoch: int


class CutTopic(str):
    """A topic's id in the position of a message that was read since its log was cut; equal to the id alone.

    `used` are the cuts that were known by then: who goes on from there has read what was written again since. In the
    store that is lost.
    """

    __slots__ = ("used",)

    used: tuple[UsedOffsets, ...]

    def __new__(cls, topic_id: str, used: tuple[UsedOffsets, ...]) -> CutTopic:
        made = super().__new__(cls, topic_id)
        made.used = used
        return made


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """Where a partition continues.

    Attributes:
        offset: The next message to deliver.
        failures: How often that message was delivered and failed; survives restarts.
        topic_id: Of the topic that it was committed for. A topic that is deleted and created again has a new id.
        partitions: How many partitions the topic had when the group first committed to it. A partition with a higher
            number was added later, and is read from its beginning: `start="latest"` would lose what was written to it
            before it was found.
        epoch: Of the leader that wrote the message before `offset`, if known: a log that was cut does not have it.
        used: The parts of the log that were cut and are written again, and whose end the position has not reached yet.
    """

    offset: int
    failures: int = 0
    topic_id: str | None = None
    partitions: int | None = None
    epoch: int | None = None
    used: tuple[UsedOffsets, ...] = ()

    @property
    def metadata(self) -> str:
        fields: dict[str, object] = {"v": _VERSION}
        if self.topic_id is not None:
            fields["topic"] = self.topic_id
        if self.partitions is not None:
            fields["partitions"] = self.partitions
        if self.failures:
            fields["failures"] = self.failures
        if self.epoch is not None:
            fields["epoch"] = self.epoch
        if self.used:
            fields["used"] = self.used
        return json.dumps(fields, separators=(",", ":"))

    def moved(
        self, offset: int, failures: int = 0, *, epoch: int | None = None
    ) -> CommittedPosition:
        """The same topic, another message. `epoch`: of the message before that."""
        used = tuple(part for part in self.used if offset < part.below)
        return CommittedPosition(offset, failures, self.topic_id, self.partitions, epoch, used)

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> CommittedPosition:
        """Parse a commit; of one that another program wrote, only the offset is used."""
        if not metadata:
            return cls(offset)
        try:
            fields = json.loads(metadata)
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            # Of kafka-consumer-groups --reset-offsets, or of another consumer.
            logger.info(
                "the commit at offset %d has foreign metadata; failures are counted from zero",
                offset,
            )
            return cls(offset)
        failures, topic, partitions, epoch, used = (
            fields.get(name) for name in ("failures", "topic", "partitions", "epoch", "used")
        )
        return cls(
            offset,
            failures=failures if isinstance(failures, int) else 0,
            topic_id=topic if isinstance(topic, str) else None,
            partitions=partitions if isinstance(partitions, int) else None,
            epoch=epoch if isinstance(epoch, int) else None,
            used=tuple(UsedOffsets(*part) for part in used) if isinstance(used, list) else (),
        )
