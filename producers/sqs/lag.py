"""Asks SQS how many messages a queue has; for `triggerer watchers … --lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from producers.sqs.connecting import find_url, open_client
from producers.sqs.errors import asked
from producers.sqs.queue import name_of
from triggerer.abc import SourceLag

if TYPE_CHECKING:
    from producers.sqs.settings import SqsSettings

_WAITING: Final = "ApproximateNumberOfMessages"
_IN_FLIGHT: Final = "ApproximateNumberOfMessagesNotVisible"
_DELAYED: Final = "ApproximateNumberOfMessagesDelayed"


async def measure_lag(settings: SqsSettings, queue: str) -> SourceLag:
    """Return the numbers of waiting, in-flight and delayed messages: approximate figures, some seconds old.

    Raises:
        BrokerRefused: There is no such queue, or this identity may not look at it.
        BrokerUnavailable: SQS does not answer.
    """
    async with open_client(settings, queue) as client:
        url = await find_url(client, queue, account=settings.account)
        answer = await asked(
            client.get_queue_attributes(
                QueueUrl=url, AttributeNames=[_WAITING, _IN_FLIGHT, _DELAYED]
            ),
            f"asking queue {name_of(queue)!r} for its length",
        )
    found = {name: int(value) for name, value in answer.get("Attributes", {}).items()}
    waiting, in_flight, delayed = (found.get(name, 0) for name in (_WAITING, _IN_FLIGHT, _DELAYED))
    if _WAITING not in found:
        return SourceLag(None, note="SQS did not report the queue's length")
    return SourceLag(
        waiting + in_flight + delayed,
        {"waiting": waiting, "in flight": in_flight, "delayed": delayed},
        "approximate",
    )
