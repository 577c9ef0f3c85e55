"""Sends the requests for which aiokafka has no public method.

A commit of `Cluster` contains the membership under which its partition was assigned. So if the commit comes after a
rebalance, the broker refuses the commit. aiokafka's own `commit` contains the newest membership. After a rebalance, it
could move the position of a partition that another member owns now (aio-libs/aiokafka#929).
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka import errors as sdk
from aiokafka.client import ConnectionGroup
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.metadata import MetadataRequest

from producers.kafka.errors import guarded
from producers.kafka.missing_topics import find_missing
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.epoch_request import EpochEndsRequest
from producers.kafka.wire.internals import (
    client_of,
    coordinator_of,
    is_joining,
    send_to_coordinator,
    set_fetch_wait,
)
from producers.kafka.wire.metadata_request import DescribeTopicsRequest
from triggerer.abc import StoreMark
from triggerer.errors import BrokerRefused, BrokerUnavailable

_NO_ID = bytes(16)
_SHORT_WAIT_MS = 50


class Membership(NamedTuple):
    """Identifies this member to the group's coordinator."""

    generation: int
    member_id: str


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster has it now; `topic_id` is None if the brokers have no topic ids."""

    name: str
    topic_id: str | None
    partitions: int
    raw_id: bytes | None = None
    """`topic_id` in the form of Kafka's protocol."""
    epochs: tuple[int, ...] = ()
    """The epoch of each partition's leader, by partition; empty if the brokers do not report epochs."""


class Cluster:
    """Requests over a started consumer's connections. All methods but `check_marks` raise only `BrokerError`."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        group: str,
        servers: str,
        *,
        fetch_max_wait_ms: int,
        mark: StoreMark | None = None,
    ) -> None:
        self._consumer = consumer
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._group = group
        self._where = f"at {servers}"
        self._knows_ids = True
        self._mark = mark

    @property
    def _coordinator(self) -> Any:
        return coordinator_of(self._consumer)

    def membership(self) -> Membership:
        """Return the current membership; while partitions are being assigned, it does not change."""
        return Membership(self._coordinator.generation, self._coordinator.member_id)

    def request_rejoin(self, membership: Membership) -> None:
        """Rejoin the group now, before the next heartbeat reports the rebalance.

        Does nothing if `membership` is out of date, because the client has rejoined already.
        """
        if self.membership() == membership:
            self._coordinator.request_rejoin()

    def wait_long(self, is_long: bool) -> None:
        """Set whether the broker may delay a fetch for long while there are no messages.

        Pass False while a partition waits to be resumed. aiokafka sends a broker one fetch at a time, so the messages
        of a resumed partition come only after the answer to the delayed fetch.
        """
        wait_ms = self._fetch_max_wait_ms
        set_fetch_wait(self._consumer, wait_ms if is_long else min(wait_ms, _SHORT_WAIT_MS))

    async def describe(
        self, topics: Collection[str], *, may_be_gone: bool = False
    ) -> dict[str, TopicDescription]:
        """Return the topics by name, without creating any.

        Args:
            may_be_gone: True: leave out a topic that does not exist, and raise no error.
        Raises:
            BrokerRefused: A topic does not exist or may not be described.
            BrokerUnavailable: The cluster does not answer, or is still creating a topic.
        """
        names = sorted(topics)
        what = f"look-up of topic {', '.join(names)} {self._where}"
        client = client_of(self._consumer)
        node, connection = self._where_to_ask(client)
        if node is None:
            raise BrokerUnavailable(f"{what}: no broker is known")
        response: Any = None
        if self._knows_ids:
            try:
                request: Any = DescribeTopicsRequest(names)
                response = await guarded(client.send(node, request, group=connection), what)
            except NotImplementedError:
                self._knows_ids = False
        if response is None:
            request = MetadataRequest(names, allow_auto_topic_creation=False)
            response = await guarded(client.send(node, request, group=connection), what)
        found: dict[str, TopicDescription] = {}
        for error_code, name, *rest in response.topics:
            error = sdk.for_code(error_code)
            if may_be_gone and error in _GONE:
                continue
            raise_for_topic(error, name, self._where)
            raw_id = rest[0] if self._knows_ids and rest[0] != _NO_ID else None
            partitions = rest[2] if self._knows_ids else rest[-1]
            # The id as Kafka's own tools print it.
            topic_id = base64.urlsafe_b64encode(raw_id).decode().rstrip("=") if raw_id else None
            epochs = _epochs(partitions) if self._knows_ids else ()
            found[name] = TopicDescription(name, topic_id, len(partitions), raw_id, epochs)
        return found

    async def find_missing(self, topics: Collection[str]) -> frozenset[str]:
        """Return the topics that do not exist and that the brokers do not create.

        If the brokers do not say whether they create topics, no topic is returned.

        Raises:
            BrokerUnavailable, BrokerRefused: The cluster does not answer, or refuses the request.
        """
        client = client_of(self._consumer)
        node, connection = self._where_to_ask(client)
        if node is None or not topics:
            return frozenset()
        what = f"look-up of topic {', '.join(sorted(topics))} {self._where}"

        async def send(request: Any) -> Any:
            return await guarded(client.send(node, request, group=connection), what)

        try:
            return await find_missing(send, node, topics)
        except NotImplementedError:
            # The broker does not know a request's version, so it cannot say which topics are missing.
            return frozenset()

    async def know_leaders(self, topics: Collection[str]) -> None:
        """Make the client look up the leaders of these topics' partitions now.

        Otherwise the client's first request for an offset would fail for lack of a leader, and the client would repeat
        it only after `retry_backoff_ms`.

        Raises:
            BrokerUnavailable, BrokerRefused: The cluster does not answer, or refuses the request.
        """
        client = client_of(self._consumer)
        what = f"look-up of the leaders of {', '.join(sorted(topics))} {self._where}"
        await guarded(client.set_topics(topics), what)

    async def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return, by partition, the offset at which the messages of the given leader epoch end in the broker's log.

        If a reader has read messages of the epoch at or after this offset, they are lost: the log was cut. A partition
        is left out if its broker does not know the epoch, or does not know the request. Call `know_leaders` first.

        Raises:
            BrokerUnavailable: The cluster does not answer, or a partition has no leader, or its leader has changed.
            BrokerRefused: The cluster refuses the request.
        """
        client = client_of(self._consumer)
        what = f"look-up of leader epochs {self._where}"
        by_node: defaultdict[int, defaultdict[str, dict[int, int]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for place, epoch in epochs.items():
            node = client.cluster.leader_for_partition(place)
            if node is None or node < 0:
                raise BrokerUnavailable(f"{what}: {place.topic}[{place.partition}] has no leader")
            by_node[node][place.topic][place.partition] = epoch
        found: dict[TopicPartition, int] = {}
        for node, asked in by_node.items():
            try:
                response: Any = await guarded(client.send(node, EpochEndsRequest(asked)), what)
            except NotImplementedError:
                # The broker does not know the request, so leave its partitions out.
                continue
            for topic, partitions in response.topics:
                for error_code, number, _, end in partitions:
                    error = sdk.for_code(error_code)
                    if error is not sdk.NoError:
                        raise BrokerUnavailable(f"{what}: {topic}[{number}]: {error.__name__}")
                    if end >= 0:
                        found[TopicPartition(topic, number)] = end
        return found

    def _where_to_ask(self, client: Any) -> tuple[int | None, ConnectionGroup]:
        """Return a node and one of its connections, if possible a connection without fetches.

        A broker answers the requests of a connection in order, so a request would wait for an earlier fetch. The
        coordinator's connection carries no fetches. But while this member joins its group, a request would wait there
        for the join.
        """
        node = getattr(self._coordinator, "coordinator_id", None)
        # A reader of one partition is in no group and has no coordinator.
        if node is None or is_joining(self._coordinator):
            return client.get_random_node(), ConnectionGroup.DEFAULT
        return node, ConnectionGroup.COORDINATION

    async def committed(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition]:
        """Return the group's committed positions, by partition. Partitions without a commit are left out.

        The call waits for the group's coordinator without a limit, so the caller sets a deadline.
        """
        fetched = await guarded(
            self._coordinator.fetch_committed_offsets(list(partitions)),
            f"read of the commits of group {self._group} {self._where}",
        )
        return {
            partition: CommittedPosition.parse(commit.offset, commit.metadata)
            for partition, commit in fetched.items()
        }

    @property
    def last_read_at(self) -> datetime | None:
        """See `StoreMark.last_read_at`. None if there is no mark."""
        return None if self._mark is None else self._mark.last_read_at

    def check_marks(self, positions: Iterable[CommittedPosition]) -> None:
        """Compare the marks of commits with the database.

        Raises:
            StoreRestored: A commit is newer than the database.
        """
        if self._mark is not None:
            self._mark.check([position.mark for position in positions])

    async def commit(
        self, membership: Membership, positions: Mapping[TopicPartition, CommittedPosition]
    ) -> dict[TopicPartition, type[Exception]]:
        """Send one commit request; return the refused partitions with their errors, empty if all are committed.

        Raises:
            BrokerUnavailable, BrokerRefused: The request failed; each position may be committed or not.
        """
        what = f"commit to group {self._group} {self._where}"
        by_topic: defaultdict[str, list[tuple[int, int, str]]] = defaultdict(list)
        mark = None if self._mark is None else self._mark.text
        for (topic, partition), plain in positions.items():
            position = plain if mark is None else replace(plain, mark=mark)
            by_topic[topic].append((partition, position.offset, position.metadata))
        request = OffsetCommitRequest(
            self._group,
            membership.generation,
            membership.member_id,
            OffsetCommitRequest.DEFAULT_RETENTION_TIME,
            list(by_topic.items()),
        )
        await guarded(self._coordinator.ensure_coordinator_known(), what)
        response: Any = await guarded(send_to_coordinator(self._coordinator, request), what)
        refused: dict[TopicPartition, type[Exception]] = {}
        for topic, partitions in response.topics:
            for partition, error_code in partitions:
                error = sdk.for_code(error_code)
                if error is not sdk.NoError:
                    refused[TopicPartition(topic, partition)] = error
        if any(issubclass(error, _COORDINATOR_MOVED) for error in refused.values()):
            self._coordinator.coordinator_dead()
        return refused


def _epochs(partitions: Sequence[Any]) -> tuple[int, ...]:
    by_number = {number: epoch for _, number, _, epoch, *_ in partitions}
    return tuple(by_number.get(number, -1) for number in range(len(partitions)))


def raise_for_topic(error: type[Exception], name: str, where: str) -> None:
    """Raise the error that a broker returned for a topic, if any."""
    if error is sdk.NoError:
        return
    if error is sdk.UnknownTopicOrPartitionError:
        raise BrokerRefused(
            f"there is no topic {name!r} {where}",
            hint=f"create it: kafka-topics.sh --create --topic {name} --partitions 8 …",
        )
    if error is sdk.TopicAuthorizationFailedError:
        raise BrokerRefused(
            f"topic {name!r} {where} may not be read by this user",
            hint="the Kafka user needs Read and Describe on the topic",
        )
    if error is sdk.InvalidTopicError:
        raise BrokerRefused(f"{name!r} is not a valid topic name")
    raise BrokerUnavailable(f"topic {name!r} {where}: {error.__name__}")


# The errors for a missing topic. A broker with topic ids may answer LeaderNotAvailableError for a topic just deleted.
_GONE = (sdk.UnknownTopicOrPartitionError, sdk.LeaderNotAvailableError)
_COORDINATOR_MOVED = (
    sdk.GroupCoordinatorNotAvailableError,
    sdk.NotCoordinatorForGroupError,
    sdk.RequestTimedOutError,
)
