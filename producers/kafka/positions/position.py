"""The committed position of a partition, and the data that is stored in the metadata of Kafka's offset commit.

The metadata takes about 130 bytes, more after a cut, and brokers allow 4096. It contains one failure count: that of the
message at the committed offset. Later messages need no count, because a commit never passes a failed message.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import NamedTuple

logger = logging.getLogger(__name__)

_VERSION = 1


class UsedOffsets(NamedTuple):
    """Offsets that a log may use again after a cut, from `since` up to, but not including, `below`.

    Lost messages at these offsets may have events already. So a new message at such an offset needs another idempotency
    key: its key also contains `epoch`, the epoch of the leader that wrote the lost messages.
    """

    since: int
    below: int
    epoch: int


class CutTopic(str):
    """A topic's id, with the cuts that were known when a message was read. Compares equal to the plain id.

    After a cut, each message's position contains this object instead of the plain id. A `LaneReader` goes back to a cut
    that its first position does not list in `used`. The store saves only the plain id, so a reader goes back to the cut
    after a restart.
    """

    __slots__ = ("used",)

    used: tuple[UsedOffsets, ...]

    def __new__(cls, topic_id: str, used: tuple[UsedOffsets, ...]) -> CutTopic:
        made = super().__new__(cls, topic_id)
        made.used = used
        return made


@dataclass(frozen=True, slots=True)
class CommittedPosition:
    """Where the reading of a partition continues.

    Attributes:
        offset: The next message to deliver.
        failures: How often that message was delivered and failed; survives restarts.
        topic_id: The topic's id at the commit. A topic that is deleted and created again has a new id.
        partitions: How many partitions the topic had at the first commit for this partition. Partitions are numbered
            from 0, so a partition whose number is not below this count was added later. Such a partition is read from
            its beginning, whatever `start` is.
        epoch: The epoch of the leader that wrote the message before `offset`; None: unknown. A broker compares the
            epoch with its log, to find out whether the log was cut.
        mark: The store's mark at the commit; see `triggerer.abc.StoreMark`. None: the commit has none.
        used: By cut, the offsets that the log has used again. A cut is dropped once the position is past the cut's
            offsets.
    """

    offset: int
    failures: int = 0
    topic_id: str | None = None
    partitions: int | None = None
    epoch: int | None = None
    used: tuple[UsedOffsets, ...] = ()
    mark: str | None = None

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
        if self.mark is not None:
            fields["mark"] = self.mark
        return json.dumps(fields, separators=(",", ":"))

    def moved(
        self, offset: int, failures: int = 0, *, epoch: int | None = None
    ) -> CommittedPosition:
        """Return this partition's position at another offset; `epoch` is the epoch of the message before `offset`."""
        used = tuple(part for part in self.used if offset < part.below)
        return CommittedPosition(offset, failures, self.topic_id, self.partitions, epoch, used)

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> CommittedPosition:
        """Parse a commit; if another program wrote it, only the offset is used."""
        if not metadata:
            return cls(offset)
        try:
            fields = json.loads(metadata)
        except ValueError:
            fields = None
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            # `kafka-consumer-groups --reset-offsets` or another consumer wrote this commit.
            logger.info(
                "the commit at offset %d has foreign metadata; failures are counted from zero",
                offset,
            )
            return cls(offset)
        failures, topic, partitions, epoch, used, mark = (
            fields.get(name)
            for name in ("failures", "topic", "partitions", "epoch", "used", "mark")
        )
        return cls(
            offset,
            failures=failures if isinstance(failures, int) else 0,
            topic_id=topic if isinstance(topic, str) else None,
            partitions=partitions if isinstance(partitions, int) else None,
            epoch=epoch if isinstance(epoch, int) else None,
            used=tuple(UsedOffsets(*part) for part in used) if isinstance(used, list) else (),
            mark=mark if isinstance(mark, str) else None,
        )
