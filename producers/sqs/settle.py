"""Turns the outcomes of a lane's messages into deletions, redeliveries and dead letters."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from producers.sqs.dead_letter import DeadLetters
from producers.sqs.deletions import Deletions
from producers.sqs.in_flight import InFlight
from producers.sqs.message import Delivery, State
from producers.sqs.visibility import Visibility
from triggerer.abc import AdvanceItem, AdvanceOutcome, ReportAdvanced
from triggerer.errors import BrokerError
from triggerer.pluginkit.delivery import Judgement, judge
from triggerer.pluginkit.reporting import reporting

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings

logger = logging.getLogger(__name__)

_BEHIND_S: Final = 1
"""The later messages of a group become visible this number of seconds after the failed message.

If all became visible at once, some services with SQS's API would deliver them together, and count a delivery of each.
"""


class _Progress:
    """The progress of one call of `advance`.

    Attributes:
        to_delete: The messages of all clean lanes, which are deleted together. A lane is clean if each of its messages
            is in flight and has a clean outcome (`AdvanceOutcome.is_clean`).
        done: The indices of finished lanes that are not clean, until `take_done` returns them.
    """

    __slots__ = ("_batches", "_gone", "_left", "_places", "done", "to_delete")

    def __init__(self, batches: Sequence[Sequence[AdvanceItem]]) -> None:
        self._batches = batches
        self._places: dict[Delivery, int] | None = None
        self._left: dict[int, int] = {}
        self.to_delete: list[Delivery] = []
        self._gone: list[Delivery] = []
        self.done: list[int] = []

    def mark_gone(self, messages: Sequence[Delivery]) -> None:
        self._gone += messages

    def take_done(self) -> list[int]:
        """Return the indices of newly finished lanes, each once."""
        done, self.done = self.done, []
        gone, self._gone = self._gone, []
        if self._places is None:
            # Find each message's lane only now, because most calls of `advance` end before the lanes are needed.
            together = set(self.to_delete)
            self._places = {
                delivery: place
                for place, batch in enumerate(self._batches)
                for delivery, _ in batch
                if delivery in together
            }
            self._left = Counter(self._places.values())
        for delivery in gone:
            place = self._places[delivery]
            self._left[place] -= 1
            if not self._left[place]:
                done.append(place)
        return done


class Settler:
    """Deletes finished messages and redelivers failed ones. Different lanes can advance concurrently."""

    def __init__(
        self,
        in_flight: InFlight,
        visibility: Visibility,
        deletions: Deletions,
        dead_letters: DeadLetters,
        settings: SqsSettings,
        *,
        give_again: Callable[[list[Delivery], float], None],
    ) -> None:
        self._in_flight = in_flight
        self._visibility = visibility
        self._deletions = deletions
        self._dead_letters = dead_letters
        self._policy = settings.delivery_policy()
        self._give_again = give_again

    async def advance(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced
    ) -> None:
        """See `SqsSharedStreamProducer.advance_lanes`."""
        progress = _Progress(batches)
        others: list[int] = []
        for place, batch in enumerate(batches):
            if all(
                outcome.is_clean and delivery.state is not State.GONE for delivery, outcome in batch
            ):
                progress.to_delete += [delivery for delivery, _ in batch]
            else:
                others.append(place)
        with reporting(report, progress.take_done):
            if others:
                await self._advance_all(batches, others, progress)
            else:
                await self._deletions.delete(progress.to_delete, progress.mark_gone)

    async def _advance_all(
        self, batches: Sequence[Sequence[AdvanceItem]], others: Sequence[int], progress: _Progress
    ) -> None:
        """Delete `progress.to_delete`, while the lanes at the indices `others` are advanced message by message."""
        errors: list[BrokerError] = []

        async def record_error(advance: Callable[..., Awaitable[None]], *arguments: Any) -> None:
            try:
                await advance(*arguments)
            except BrokerError as error:
                errors.append(error)

        async def advance_other(place: int) -> None:
            await self._advance_one_by_one(batches[place])
            progress.done.append(place)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                record_error, self._deletions.delete, progress.to_delete, progress.mark_gone
            )
            for place in others:
                tasks.start_soon(record_error, advance_other, place)
        if errors:
            raise errors[0]

    async def _advance_one_by_one(self, batch: Sequence[AdvanceItem]) -> None:
        """Advance one lane, message by message."""
        done: list[Delivery] = []
        stale = 0
        for delivery, outcome in batch:
            if delivery.state is State.GONE:
                # This delivery ended when an earlier message of its group failed. The message comes again.
                stale += 1
                continue
            judgement = judge(outcome)
            if judgement is Judgement.ACK or await self._dead_letter_if_unusable(
                delivery, outcome, judgement
            ):
                done.append(delivery)
            else:
                await self._deletions.delete(done)
                done = []
                await self._redeliver(delivery, outcome)
        await self._deletions.delete(done)
        if stale:
            logger.info("%d messages come again after a failed message of their group", stale)

    async def _dead_letter_if_unusable(
        self, delivery: Delivery, outcome: AdvanceOutcome, judgement: Judgement
    ) -> bool:
        """Dead-letter a message that was rejected or failed too often. Return whether to delete the message now."""
        failures = self._in_flight.failures(delivery)
        if judgement is Judgement.REJECT:
            if not self._dead_letters.has_queue:
                # There is no dead-letter queue, and the runtime could not park the message. So skip the message.
                logger.warning("message rejected by a watcher, and skipped: %r", delivery)
                return True
            reason = f"rejected by {outcome.rejected} of {_members(outcome)} watchers"
        elif outcome.blames_event and self._is_exhausted(failures):
            reason = (
                f"{outcome.failed} of {_members(outcome)} watchers failed on delivery {failures}"
            )
        else:
            return False
        evidence = {
            "reason": reason,
            "deliveries": failures,
            "acked": outcome.acked,
            "failed": outcome.failed,
            "rejected": outcome.rejected,
        }
        try:
            await self._dead_letters.write(delivery.message, evidence, delivery.attributes)
        except BrokerError as error:
            # The message stays in its queue and is delivered again. The other lanes continue.
            logger.error("message cannot be set aside and stays where it is: %s", error)
            return False
        return True

    def _is_exhausted(self, failures: int) -> bool:
        limit = self._dead_letters.limit
        return self._policy.is_exhausted(failures) or (limit is not None and failures >= limit)

    async def _redeliver(self, delivery: Delivery, outcome: AdvanceOutcome) -> None:
        """Redeliver a message after a delay, and the later messages of its group after it."""
        in_flight = self._in_flight
        if outcome.failed and not outcome.blames_event and not delivery.is_lost:
            # The failing watchers had stopped at an earlier message, and never processed this message. So yield the
            # message again from memory. To give it back would cost one of the deliveries that the redrive policy
            # allows.
            self._give_again(in_flight.repeat(delivery), self._policy.delay(1))
            return
        failures = in_flight.failures(delivery)
        delay_s = round(self._policy.delay(failures))
        if not outcome.blames_event:
            # Do not count a failure: no watcher processed the message, or the message was rejected and could not be
            # dead-lettered.
            in_flight.exclude_from_failures(delivery)
        behind = in_flight.behind(delivery)
        logger.warning(
            "message failed (%d of %s deliveries), delivered again in %d s%s: %r",
            failures,
            self._policy.max_deliveries or "any number of",
            delay_s,
            f" before {len(behind)} later ones of its group" if behind else "",
            delivery,
        )
        for other in behind:
            in_flight.exclude_from_failures(other)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._visibility.give_back, delivery, delay_s)
            for other in behind:
                tasks.start_soon(self._visibility.give_back, other, delay_s + _BEHIND_S)


def _members(outcome: AdvanceOutcome) -> int:
    return outcome.acked + outcome.failed + outcome.rejected
