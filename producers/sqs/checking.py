"""Checks that a queue and its dead-letter queue exist, without receiving; for `triggerer check`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from producers.sqs.connecting import find_queue, open_client
from producers.sqs.dead_letter import DeadLetters
from producers.sqs.queue import LONGEST_VISIBILITY_S, Queue, canonical
from triggerer.abc import DeliveryFacts

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings


async def check_queue(settings: SqsSettings, queue: str) -> None:
    """Look up the queue and its dead-letter queue. The caller sets a deadline.

    The right to receive is not checked, because only a poll could check it, and a poll would take messages.

    Raises:
        BrokerRefused: The credentials are refused, a queue does not exist or may not be looked up, or the queue is its
            own dead-letter queue.
        BrokerUnavailable: SQS does not answer.
    """
    async with open_client(settings, queue) as client:
        found = await find_queue(client, queue, settings)
        await DeadLetters(client, found, settings).check()


async def describe_delivery(settings: SqsSettings, queue: str, *, ask: bool) -> DeliveryFacts:
    """Return how messages are delivered. With `ask`, the queue is asked for its attributes.

    Raises:
        BrokerRefused, BrokerUnavailable: The errors of `check_queue`, only with `ask`.
    """
    if not ask:
        return _facts(settings, None)
    async with open_client(settings, queue) as client:
        return _facts(settings, await find_queue(client, queue, settings))


def _facts(settings: SqsSettings, queue: Queue | None) -> DeliveryFacts:
    has_dead_letters = None
    if settings.dead_letter_queue is not None:
        has_dead_letters = True
    elif queue is not None:
        has_dead_letters = queue.redrive is not None
    limits = [settings.max_deliveries] if settings.max_deliveries else []
    if queue is not None and queue.redrive is not None:
        limits.append(queue.redrive.max_receive_count)
    retention_s = None if queue is None else queue.retention_s
    return DeliveryFacts(
        is_acknowledged=True,
        because="messages are deleted after the events are durable",
        key="queue and message id",
        retention=None if retention_s is None else timedelta(seconds=retention_s),
        redelivers_after=None if queue is None else timedelta(seconds=queue.lease_s),
        is_renewed=True,
        renewed_for=timedelta(seconds=LONGEST_VISIBILITY_S),
        # Without a dead-letter queue, a message is delivered again until its retention ends.
        drops_after=min(limits) if limits and has_dead_letters else None,
        has_dead_letters=has_dead_letters,
        dead_letter_setting="dead_letter_queue",
        source=None if queue is None else f"queue {canonical(queue.url)}",
    )
