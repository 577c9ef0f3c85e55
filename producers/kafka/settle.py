"""Turns the outcomes of a lane's messages into commits, redeliveries and dead letters."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from aiokafka import TopicPartition

from producers.kafka.assignment import Assignment
from producers.kafka.dead_letter import DeadLetters
from producers.kafka.in_flight import LaneInFlight
from producers.kafka.message import KafkaMessage
from producers.kafka.positions.commits import Commits
from producers.kafka.positions.position import CommittedPosition
from producers.kafka.verdict import Verdict, judge
from triggerer.abc import AdvanceItem, AdvanceOutcome, ReportStanding
from triggerer.errors import BrokerError

if TYPE_CHECKING:
    from producers.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)


class Settler:
    """Commits resolved batches, and redelivers failed messages. Different lanes can advance concurrently."""

    def __init__(
        self,
        assignment: Assignment,
        commits: Commits,
        dead_letters: DeadLetters,
        settings: KafkaSettings,
    ) -> None:
        self._assignment = assignment
        self._commits = commits
        self._dead_letters = dead_letters
        self._policy = settings.delivery_policy()
        self._standing: set[TopicPartition] = set()
        self._report: ReportStanding = _tell_nobody
        assignment.on_revoked = self._report_moving

    def use_standing(self, report: ReportStanding) -> None:
        """See `KafkaSharedStreamProducer.use_standing`."""
        self._report = report

    def _report_stuck(self, message: KafkaMessage, error: BrokerError) -> None:
        logger.error("message cannot be set aside and stays where it is: %s", error)
        self._standing.add(message.lane.partition)
        self._report(message.lane.partition, f"its message cannot be set aside: {error}")

    def _report_moving(self, partition: TopicPartition) -> None:
        if partition in self._standing:
            self._standing.discard(partition)
            self._report(partition, None)

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """See `KafkaSharedStreamProducer.advance`."""
        try:
            while batch:
                verdict = await self._dead_letter_rejected(judge(batch))
                batch = await self._advance_until_failure(verdict)
        finally:
            self._assignment.advanced()

    async def _advance_until_failure(self, verdict: Verdict) -> Sequence[AdvanceItem]:
        """Commit up to the verdict's offset, and dead-letter or redeliver its failed message.

        Return the items that are still to be judged: all items after a dead-lettered message, otherwise none.
        """
        if verdict.stale:
            logger.info(
                "%d messages were advanced after their partition was taken away or rewound; "
                "they are delivered again",
                verdict.stale,
            )
        lane = verdict.lane
        if lane is None or verdict.is_outdated:
            return ()
        offset = verdict.offset
        failures = 0
        is_dead_lettered = False
        if verdict.failed is not None:
            failures = self._count(lane, verdict)
            is_dead_lettered = await self._dead_letter_failed(verdict, failures)
            if is_dead_lettered:
                offset, failures = offset + 1, 0
        position = lane.position(offset, failures)
        if not await self._commit(lane, position, verdict):
            return ()
        if verdict.failed is None or is_dead_lettered:
            lane.committed = position
            self._report_moving(lane.partition)
            if lane.retries_alone:
                self._assignment.end_retry_alone(lane)
            return verdict.rest
        self._redeliver(lane, position, verdict)
        return ()

    async def _dead_letter_rejected(self, verdict: Verdict) -> Verdict:
        """Write rejected messages to the dead-letter topic, if there is one.

        If the dead-letter topic refuses a message, the lane stops at that message. Without a
        dead-letter topic, only messages that the runtime could not park are in `verdict.rejected`.
        These messages are logged and skipped.
        """
        for place, (message, outcome) in enumerate(verdict.rejected):
            if not self._dead_letters.has_topic_for(message.topic):
                logger.warning("message rejected by a watcher, and skipped: %r", message)
                continue
            reason = f"{outcome.rejected} of {_members(outcome)} watchers rejected it"
            evidence = {
                "acked": outcome.acked,
                "failed": outcome.failed,
                "rejected": outcome.rejected,
                "reason": reason,
            }
            try:
                await self._dead_letters.write(message, evidence)
            except BrokerError as error:
                # Redeliver the message as if it had failed. If the dead-letter topic refused it (see `RecentRefusals`),
                # the runtime parks the message when it is rejected again.
                logger.error("message cannot be set aside and stays where it is: %s", error)
                return replace(
                    verdict,
                    offset=message.offset,
                    failed=(message, outcome),
                    rest=(),
                    rejected=verdict.rejected[:place],
                )
        return verdict

    @staticmethod
    def _count(lane: LaneInFlight, verdict: Verdict) -> int:
        """Return how often the failed message has failed, including this delivery if it counts.

        A delivery counts if a watcher pulled the message and failed it, or was absent. It does not count if the watcher
        had stopped at an earlier message.
        """
        before = lane.committed.failures if lane.committed.offset == verdict.offset else 0
        assert verdict.failed is not None
        return before + (1 if verdict.failed[1].blames_event else 0)

    async def _commit(
        self, lane: LaneInFlight, position: CommittedPosition, verdict: Verdict
    ) -> bool:
        """Commit the position; return whether it is committed and the verdict still applies.

        An outdated verdict commits nothing: while a dead letter was written, the lane may have been closed or rewound.
        The commit would then overwrite a newer position.
        """
        if verdict.is_outdated:
            return False
        if position == lane.committed:
            return True
        if await self._commits.commit(lane.partition, lane.membership, position):
            return not verdict.is_outdated
        lane.close()
        logger.warning(
            "commit of %s at %d came after the partition was taken away: nothing was committed, "
            "the messages are delivered again",
            lane.partition,
            position.offset,
        )
        return False

    def _redeliver(self, lane: LaneInFlight, position: CommittedPosition, verdict: Verdict) -> None:
        delay = self._policy.delay(position.failures)
        logger.warning(
            "message failed (%d of %s deliveries), delivered again in %.1f s: %s offset %d",
            position.failures,
            self._policy.max_deliveries or "any number of",
            delay,
            lane.partition,
            verdict.offset,
        )
        self._assignment.redeliver_after(lane, position, delay)

    async def _dead_letter_failed(self, verdict: Verdict, failures: int) -> bool:
        """Dead-letter the failed message if it has failed too often.

        Return whether the message is in the dead-letter topic, so that a commit may pass it.
        """
        assert verdict.failed is not None
        message, outcome = verdict.failed
        if not outcome.blames_event or not self._policy.is_exhausted(failures):
            return False
        try:
            members = _members(outcome)
            evidence = {
                "deliveries": failures,
                "acked": outcome.acked,
                "failed": outcome.failed,
                "rejected": outcome.rejected,
                "reason": f"{outcome.failed} of {members} watchers failed on delivery {failures}",
            }
            await self._dead_letters.write(message, evidence)
        except BrokerError as error:
            # The message stays failed and its partition waits. The other partitions continue.
            self._report_stuck(message, error)
            return False
        return True


def _tell_nobody(lane: Hashable, why: str | None) -> None:
    """Ignore the report, because nobody has called `use_standing`."""


def _members(outcome: AdvanceOutcome) -> int:
    return outcome.acked + outcome.failed + outcome.rejected
