"""Commits the positions of many lanes in shared requests."""

from __future__ import annotations

import logging

import anyio
from aiokafka import TopicPartition
from aiokafka import errors as sdk
from anyio.lowlevel import checkpoint

from producers.kafka.errors import hint_for
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.wire.cluster import Cluster, Membership
from triggerer.errors import BrokerRefused, BrokerUnavailable
from triggerer.pluginkit.backoff import Backoff

logger = logging.getLogger(__name__)

_LOST = (
    sdk.IllegalGenerationError,
    sdk.UnknownMemberIdError,
    sdk.RebalanceInProgressError,
)
_RETRIED = (
    sdk.GroupCoordinatorNotAvailableError,
    sdk.NotCoordinatorForGroupError,
    sdk.GroupLoadInProgressError,
    sdk.RequestTimedOutError,
    sdk.NotEnoughReplicasError,
    sdk.LeaderNotAvailableError,
)
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 2.0


class _Waiting:
    __slots__ = ("answered", "error", "is_abandoned", "partition", "position")

    def __init__(self, partition: TopicPartition, position: CommittedPosition) -> None:
        self.partition = partition
        self.position = position
        self.answered = False
        self.is_abandoned = False
        """True: the lane was cancelled, or gave up, before the broker answered."""
        self.error: type[Exception] | None = None


class Commits:
    """Sends positions to the group's coordinator, one request at a time.

    Lanes that advance during a request share the next request. On Kafka 4.1, 800 advances of 8 lanes took 1.1 s with
    100 shared requests, and 6.4 s with one request for each advance.

    Args:
        topics_may_go: True: the partitions of a deleted topic count as lost. False: a deleted topic raises
            `BrokerRefused`.
    """

    def __init__(self, cluster: Cluster, *, timeout_s: float, topics_may_go: bool = False) -> None:
        self._cluster = cluster
        self._lost = (*_LOST, sdk.UnknownTopicOrPartitionError) if topics_may_go else _LOST
        self._timeout_s = timeout_s
        self._waiting: dict[Membership, list[_Waiting]] = {}
        self._sending = anyio.Lock(fast_acquire=True)

    async def commit(
        self, partition: TopicPartition, membership: Membership, position: CommittedPosition
    ) -> bool:
        """Return True when the position is committed; False if the partition was lost and nothing was committed.

        Raises:
            BrokerUnavailable: The broker did not accept the request in time. The position may be committed or not.
            BrokerRefused: The broker refuses the commit.

        Cancellation: The position may be committed or not. Positions of other lanes in the same request are sent again.
        """
        mine = _Waiting(partition, position)
        self._waiting.setdefault(membership, []).append(mine)
        try:
            async with self._sending:
                if not mine.answered:
                    # Let other lanes that advance in the same tick of the event loop add their positions to the
                    # request.
                    await checkpoint()
                    await self._send(membership)
        finally:
            mine.is_abandoned = not mine.answered
            if mine.is_abandoned and mine in (waiting := self._waiting.get(membership, [])):
                waiting.remove(mine)
        if mine.error is None:
            return True
        if issubclass(mine.error, self._lost):
            return False
        raise BrokerRefused(
            f"commit of {partition.topic}[{partition.partition}] at {position.offset}: {mine.error.__name__}",
            hint=hint_for(mine.error),
        )

    async def _send(self, membership: Membership) -> None:
        """Send all waiting positions of this membership until each is committed or refused."""
        batch = self._waiting.pop(membership, [])
        backoff = Backoff(first=_FIRST_RETRY_S, longest=_LONGEST_RETRY_S)
        problem: str = "no answer"
        try:
            with anyio.move_on_after(self._timeout_s):
                while True:
                    try:
                        refused = await self._cluster.commit(
                            membership,
                            {item.partition: item.position for item in batch if not item.answered},
                        )
                    except BrokerUnavailable as error:
                        problem = str(error)
                    else:
                        problem = self._record_answers(membership, batch, refused)
                        if not problem:
                            return
                    delay = backoff.next_delay()
                    logger.warning("commit is repeated in %.1f s: %s", delay, problem)
                    await anyio.sleep(delay)
        finally:
            # If this call failed or was cancelled, put back the positions without an answer. Their
            # lanes wait for `_sending`, and one of these lanes sends the positions next. Leave out
            # abandoned positions: an abandoned position could replace a later position of its lane.
            if left := [item for item in batch if not (item.answered or item.is_abandoned)]:
                self._waiting.setdefault(membership, []).extend(left)
        raise BrokerUnavailable(
            f"the broker accepted no commit for {self._timeout_s:.0f} s; last: {problem}"
        )

    def _record_answers(
        self,
        membership: Membership,
        batch: list[_Waiting],
        refused: dict[TopicPartition, type[Exception]],
    ) -> str:
        """Record the broker's answers. Return the names of the errors after which to send the request again, or ""."""
        repeated: set[str] = set()
        for item in batch:
            error = refused.get(item.partition)
            if error is not None and issubclass(error, _RETRIED):
                repeated.add(error.__name__)
                continue
            item.error = error
            item.answered = True
        if any(item.error is not None and issubclass(item.error, _LOST) for item in batch):
            self._cluster.request_rejoin(membership)
        return ", ".join(sorted(repeated))
