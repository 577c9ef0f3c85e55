"""Sends aiokafka's fetches with topic ids and epochs, so that a broker notices a replaced topic or log.

With aiokafka's own requests, a consumer would skip messages in two cases:

- A topic is deleted and created again. The consumer continues in the new topic at the old offset.
- A log is cut (an unclean leader election). New messages get offsets that the consumer has already read.

`Fetching` replaces the `send` of aiokafka's client. A test fails if a later version of aiokafka lacks this attribute.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as sdk
from aiokafka.protocol.fetch import FetchRequest

from producers.kafka.wire.fetch_request import (
    FetchByIdRequest,
    WantedPartition,
    WantedTopics,
    diverging_epoch,
)
from producers.kafka.wire.internals import client_of, fields_of, set_max_wait

if TYPE_CHECKING:
    from producers.kafka.in_flight import LaneInFlight
    from producers.kafka.wire.cluster import TopicDescription

_OF_ANOTHER_TOPIC: Final = (100, 103)
"""The broker's codes for UNKNOWN_TOPIC_ID and INCONSISTENT_TOPIC_ID, which aiokafka does not know."""
_UNKNOWN_TOPIC: Final = (sdk.UnknownTopicOrPartitionError.errno, -1, -1, -1, None, -1, None)
"""The answer for a partition of an unknown topic, without the partition's number.

The error code makes aiokafka read the cluster's metadata again.
"""
_LOOK_AGAIN_AFTER_S: Final = 0.02
"""If none of a fetch's partitions has a lane yet, the fetch is not sent, and aiokafka gets an empty answer after this
pause. Without the pause, aiokafka would fetch again at once.
"""
_RETRY_AFTER_S: Final = 0.1
"""The pause after a fetch with a topic id that the broker does not know. Without the pause, aiokafka would repeat the
fetch at once, and the broker would refuse it at once.
"""


class _Answer:
    """A response in the shape that aiokafka's fetcher reads."""

    API_VERSION = 11

    def __init__(self, topics: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        self.topics = topics


class Reader(Protocol):
    """Provides the topics by name, and the lanes, for `Fetching`. Implemented by `Assignment` and `LaneReader`."""

    @property
    def topics(self) -> dict[str, TopicDescription]: ...
    @property
    def lanes(self) -> dict[TopicPartition, LaneInFlight]: ...
    def fetch_wait_ms(self, usual_ms: int) -> int:
        """How long a broker may delay the next fetch while it has no message."""

    topics_are_suspect: bool
    """Set when a broker does not know the id of a topic. The reader then looks its topics up."""


class Fetching:
    """Intercepts the requests that aiokafka's fetcher sends through its client."""

    def __init__(self, consumer: AIOKafkaConsumer, reader: Reader) -> None:
        client = client_of(consumer)
        self._send = client.send
        self._reader = reader
        self._by_id = True
        client.send = self.send

    async def send(self, node_id: int, request: Any, **arguments: Any) -> Any:
        """Send a request. Rewrite a fetch to name its topics by ids, if all ids are known and the broker supports ids.

        The rewritten fetch leaves out partitions without a lane (see `_wanted`). If no partition is left, nothing is
        sent, and the answer is empty.
        """
        if isinstance(request, FetchRequest):
            self._set_wait(request)
        if self._by_id and isinstance(request, FetchRequest):
            names = self._ids(request)
            if names is not None:
                lanes = dict(self._reader.lanes)
                topics = _wanted(request, names, lanes)
                if not topics:
                    await asyncio.sleep(_LOOK_AGAIN_AFTER_S)
                    return _Answer([])
                try:
                    response = await self._send(node_id, FetchByIdRequest(request, topics))
                except NotImplementedError:
                    self._by_id = False
                else:
                    return await self._answer(response, names, lanes)
        return await self._send(node_id, request, **arguments)

    def _set_wait(self, request: FetchRequest) -> None:
        # Lengthen the wait only if the fetch surely goes to a leader. With a `client_rack`, the fetch may go to a
        # follower. A follower may learn of new messages late, and would answer only at the end of the wait.
        fields = fields_of(request)
        if not fields.rack_id:
            set_max_wait(request, self._reader.fetch_wait_ms(fields.max_wait_ms))

    def _ids(self, request: FetchRequest) -> dict[bytes, str] | None:
        """Return the topics of a request by id; None if an id is not known."""
        found: dict[bytes, str] = {}
        for name, _ in request.topics:
            topic = self._reader.topics.get(name)
            if topic is None or topic.raw_id is None:
                return None
            found[topic.raw_id] = name
        return found

    async def _answer(
        self, response: Any, names: dict[bytes, str], lanes: dict[TopicPartition, LaneInFlight]
    ) -> _Answer:
        is_unknown = False
        topics: list[tuple[str, list[tuple[Any, ...]]]] = []
        for topic_id, partitions, _ in response.topics:
            answers: list[tuple[Any, ...]] = []
            for number, error, *rest, tags in partitions:
                place = TopicPartition(names[topic_id], number)
                lane = lanes[place]
                if self._reader.lanes.get(place) is not lane:
                    continue
                if error in _OF_ANOTHER_TOPIC:
                    is_unknown = True
                    answers.append((number, *_UNKNOWN_TOPIC))
                else:
                    *offsets, aborted, replica, batches = rest
                    error = _record_epochs(lane, error, batches, tags)
                    # aiokafka expects two fields for an aborted transaction. The newer version adds tags, which are
                    # dropped here.
                    aborted = [(writer, first) for writer, first, _ in aborted or ()]
                    answers.append((number, error, *offsets, aborted, replica, batches))
            topics.append((names[topic_id], answers))
        if is_unknown:
            # The topic was deleted, or this broker does not know it yet. The reader looks its topics up to find out.
            self._reader.topics_are_suspect = True
            await asyncio.sleep(_RETRY_AFTER_S)
        return _Answer(topics)


def _wanted(
    request: Any, names: dict[bytes, str], lanes: dict[TopicPartition, LaneInFlight]
) -> WantedTopics:
    """Return the partitions of a request by topic id. Partitions without a lane are left out.

    A partition has no lane until the stream has found the partition's starting position. Until
    then, the client would fetch from a position that the client chose.
    """
    # With a `client_rack`, a follower may answer, and the follower's log may end before the requested offset. If the
    # request contained the epoch of the last message read, this follower would report a cut although there was none. So
    # leave the epoch out.
    may_compare = not fields_of(request).rack_id
    partitions = dict(request.topics)
    topics: WantedTopics = {}
    for topic_id, name in names.items():
        wanted = [
            WantedPartition(
                number, offset, max_bytes, lane.epochs.before(offset) if may_compare else None
            )
            for number, offset, max_bytes in partitions[name]
            if (lane := lanes.get(TopicPartition(name, number))) is not None
        ]
        if wanted:
            topics[topic_id] = wanted
    return topics


def _record_epochs(
    lane: LaneInFlight, error: int, batches: bytes | None, tags: dict[int, bytes]
) -> int:
    """Record the leader epochs of the batches, or where the log was cut.

    Return the error code to pass to aiokafka: after a cut `OffsetOutOfRangeError`, otherwise the broker's code.
    """
    if tags and (cut := diverging_epoch(tags)) is not None:
        lane.reported_cut = cut
        return int(sdk.OffsetOutOfRangeError.errno)
    lane.epochs.learn(batches)
    return error
