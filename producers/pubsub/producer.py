"""The producer of a shared stream that reads a Pub/Sub subscription."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from producers.pubsub.connecting import Connection, find_access
from producers.pubsub.dead_letter import DeadLetters
from producers.pubsub.failures import Failures
from producers.pubsub.message import OPEN, SETTLING, Delivery
from producers.pubsub.session import Session, first_error
from triggerer.abc import (
    AdvanceItem,
    AdvanceOutcome,
    BrokerMessage,
    ReportAdvanced,
    SharedStreamProducer,
)
from triggerer.errors import BrokerError
from triggerer.pluginkit.delivery import Judgement, judge
from triggerer.pluginkit.dumping import dump_message, load_message

if TYPE_CHECKING:
    from producers.pubsub.settings import PubSubSettings

logger = logging.getLogger(__name__)

_TURN: Final = 500
"""The number of messages to yield before other tasks of the event loop run."""


class PubSubSharedStreamProducer(SharedStreamProducer):
    """Reads a subscription by streaming pull. An event is a `BrokerMessage`, its broker payload a `Delivery`.

    - A lane is an ordering key; a message without one has its own lane.
    - `run` receives messages, extends their leases in a thread, and sends acknowledgements and nacks.
    - `advance` acknowledges finished messages, and returns when Pub/Sub has recorded the acknowledgements.
    - A failed message is given back after a growing delay. The later messages of its ordering key wait until the failed
      message has come again.
    - After `max_deliveries` failures, a message goes to the dead-letter topic, if there is one. Failures are counted in
      memory. Pub/Sub's own count, for the subscription's dead-letter policy, survives a restart.
    - Rejected messages go to the dead-letter topic; without such a topic the runtime parks them.
    - An acknowledgement that an exactly-once subscription refuses for good is no error: the message comes again, and
      its idempotency key absorbs the repeat.
    - Closing gives back all messages in flight, so that the next producer gets them at once.

    Args:
        subscription: The subscription's name, or its path with the project.
    """

    lanes_advance_side_by_side: ClassVar[bool] = True
    pauses_lanes: ClassVar[bool] = True

    def __init__(self, subscription: str, *, settings: PubSubSettings) -> None:
        self._subscription = subscription
        self._settings = settings
        self._policy = settings.delivery_policy()
        self._failures = Failures()
        self._opening = anyio.Lock()
        self._opened: Session | None = None
        self._is_paused = False

    async def _open(self) -> Session:
        """Return the session; the first call, by `open_stream` or `run`, opens it."""
        async with self._opening:
            if self._opened is None:
                settings = self._settings
                access = await find_access(settings)
                path = access.path("subscriptions", self._subscription)
                topic = settings.dead_letter_topic
                connection = Connection(settings, access)
                dead_letters = DeadLetters(
                    None if topic is None else access.path("topics", topic),
                    open_publisher=lambda: connection.publisher,
                )
                self._opened = Session(connection, path, settings, dead_letters)
        return self._opened

    async def open_stream(self) -> AsyncIterator[tuple[BrokerMessage, Delivery]]:
        """Yield messages as they arrive, in order within an ordering key.

        Raises:
            ConfigurationError: There are no credentials, or no project is known.
        """
        session = self._opened or await self._open()
        while True:
            yielded = 0
            if not self._is_paused:
                for delivery in session.in_flight.take_each():
                    yielded += 1
                    yield delivery.message, delivery
                    if yielded == _TURN or self._is_paused:
                        break
            if yielded:
                await anyio.lowlevel.checkpoint()
            else:
                await session.wait_for_messages()

    async def run(self) -> None:
        """Receive messages, extend their leases, acknowledge them and give them back, until cancelled.

        Raises:
            BrokerRefused: There is no such subscription, or this account may not read it.
            BrokerUnavailable: Pub/Sub was unreachable for `unavailable_timeout_s`, or accepted no acknowledgement for
                `ack_timeout_s`. Before the first connection, the limit is `connect_timeout_s`.
            ConfigurationError: See `open_stream`.
        """
        session = self._opened or await self._open()
        await session.run()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """See `advance_lanes`."""
        await self.advance_lanes([batch])

    async def advance_lanes(
        self, batches: Sequence[Sequence[AdvanceItem]], report: ReportAdvanced = lambda _: None
    ) -> None:
        """Acknowledge finished messages and redeliver the rest.

        Returns when Pub/Sub has recorded the acknowledgements.

        Raises:
            BrokerUnavailable: Pub/Sub accepted no acknowledgement for `ack_timeout_s`.
            BrokerRefused: Pub/Sub accepts no acknowledgement from this account.

        Cancellation: An acknowledgement may have been made or not; if not, the message is delivered again.
        """
        session = self._opened or await self._open()
        done: list[Delivery] = []
        others: list[Sequence[AdvanceItem]] = []
        # Nearly all messages share one outcome object, so compute `is_clean` once for it.
        outcome: AdvanceOutcome | None = None
        is_clean = False
        for batch in batches:
            for delivery, told in batch:
                if told is not outcome:
                    outcome, is_clean = told, told.is_clean
                if not is_clean or delivery.state is not OPEN:
                    others.append(batch)
                    break
            else:
                for delivery, _ in batch:
                    # This is `InFlight.settle`, written in place for speed.
                    delivery.state = SETTLING
                    done.append(delivery)
        self._failures.forget_all(delivery.message_id for delivery in done)
        if not others:
            await session.ack(done)
            return

        one_by_one = set(map(id, others))

        async def advance_other(place: int) -> None:
            await self._advance_one_by_one(session, batches[place])
            report([place])

        try:
            async with anyio.create_task_group() as tasks:
                together = []
                for place, batch in enumerate(batches):
                    if id(batch) in one_by_one:
                        tasks.start_soon(advance_other, place)
                    else:
                        together.append(place)
                await session.ack(done)
                report(together)
        except BaseExceptionGroup as group:
            raise first_error(group) from None

    async def _advance_one_by_one(self, session: Session, batch: Sequence[AdvanceItem]) -> None:
        """Advance one lane in order. Outcomes of the messages after a failed message are ignored."""
        done: list[Delivery] = []
        stale = 0
        for delivery, outcome in batch:
            if delivery.is_stale:
                stale += 1
            elif await self._is_done(session, delivery, outcome):
                session.in_flight.settle(delivery)
                done.append(delivery)
        if stale:
            logger.info(
                "%d messages were advanced after an earlier one had failed; they are delivered again",
                stale,
            )
        await session.ack(done)

    async def _is_done(self, session: Session, delivery: Delivery, outcome: AdvanceOutcome) -> bool:
        """Return whether to acknowledge the message. If not, this method has arranged a redelivery."""
        judgement = judge(outcome)
        if judgement is Judgement.ACK:
            self._failures.forget(delivery.message_id)
            return True
        if judgement is Judgement.REJECT:
            return await self._pass_rejected(session, delivery, outcome)
        if outcome.failed and not outcome.blames_event and session.repeat(delivery):
            # The failing watchers had stopped at an earlier message, and never processed this
            # message. So `repeat` yields the message again from memory. A nack would cost one of
            # the deliveries that the subscription's dead-letter policy allows.
            return False
        # A delivery counts as a failure only if a watcher failed the message after pulling it, or was absent.
        count = self._failures.count if outcome.blames_event else self._failures.get
        failures = count(delivery.message_id)
        if (
            outcome.blames_event
            and session.dead_letters.topic is not None
            and self._policy.is_exhausted(failures)
        ):
            members = outcome.acked + outcome.failed + outcome.rejected
            reason = f"{outcome.failed} of {members} watchers failed on delivery {failures}"
            if await self._write_dead_letter(
                session, delivery, outcome, reason, deliveries=failures
            ):
                return True
        delay = self._policy.delay(max(failures, 1))
        logger.warning(
            "message failed (%d of %s deliveries), given back in %.1f s: %s",
            failures,
            self._policy.max_deliveries or "any number of",
            delay,
            delivery.message.identity,
        )
        session.redeliver_after(delivery, delay)
        return False

    async def _pass_rejected(
        self, session: Session, delivery: Delivery, outcome: AdvanceOutcome
    ) -> bool:
        if session.dead_letters.topic is None:
            # There is no dead-letter topic, and the runtime could not park the message. So skip the message.
            logger.warning(
                "message rejected by a watcher, and skipped: %s", delivery.message.identity
            )
            return True
        reason = f"{outcome.rejected} watchers rejected it"
        if await self._write_dead_letter(session, delivery, outcome, reason):
            return True
        session.redeliver_after(delivery, self._policy.delay(1))
        return False

    async def _write_dead_letter(
        self,
        session: Session,
        delivery: Delivery,
        outcome: AdvanceOutcome,
        reason: str,
        **evidence: object,
    ) -> bool:
        """Write a message to the dead-letter topic. Return whether it was written, and can be acknowledged."""
        counts: Mapping[str, object] = {
            "reason": reason,
            "acked": outcome.acked,
            "failed": outcome.failed,
            "rejected": outcome.rejected,
            **evidence,
        }
        try:
            await session.dead_letters.write(delivery.message, counts)
        except BrokerError as error:
            # The message counts as failed and is redelivered. Other messages continue.
            logger.error("message cannot be set aside and stays where it is: %s", error)
            return False
        self._failures.forget(delivery.message_id)
        return True

    def get_advance_lane(self, broker_payload: Delivery) -> str:
        return broker_payload.lane

    def get_idempotency_key(self, broker_payload: Delivery) -> str:
        """Return `<subscription>/<message id>@<time of publication>`.

        Message ids are unique within a topic. The time distinguishes a topic from a deleted topic of the same name.
        When a message comes again, its id and its time of publication are unchanged.
        """
        return broker_payload.message.identity

    def dead_letters_rejected(self, broker_payload: Delivery) -> bool:
        """Whether the connection names a dead-letter topic that has not refused a message recently."""
        return self._opened is not None and self._opened.dead_letters.accepts_messages

    def get_size(self, broker_payload: Delivery) -> int:
        """Return the bytes of data, ordering key and attributes."""
        return broker_payload.size

    def dump_event(self, event: BrokerMessage) -> bytes:
        return dump_message(event)

    def load_event(self, data: bytes) -> BrokerMessage:
        return load_message(data)

    async def dead_letter(self, event: BrokerMessage, reason: str) -> None:
        """Publish a message to the dead-letter topic.

        Raises:
            BrokerRefused: There is no dead-letter topic, or this account may not publish there.
            BrokerUnavailable: Pub/Sub does not accept the message now.
        """
        session = self._opened or await self._open()
        await session.dead_letters.write(event, {"reason": reason})

    async def pause(self) -> None:
        """Stop yielding messages.

        Messages in flight stay leased. Once their number or size reaches a bound, Pub/Sub keeps further messages.
        """
        self._is_paused = True

    async def resume(self) -> None:
        self._is_paused = False
        if self._opened is not None:
            self._opened.mark_ready()

    async def pause_lane(self, lane: Any) -> None:
        if self._opened is not None:
            self._opened.in_flight.pause_lane(lane)

    async def resume_lane(self, lane: Any) -> None:
        if self._opened is not None:
            self._opened.in_flight.resume_lane(lane)
            self._opened.mark_ready()

    async def aclose(self) -> None:
        """Give back the messages in flight, and disconnect."""
        if self._opened is not None:
            await self._opened.aclose()
