"""The interface of the brokers that `triggerer demo --broker` can try out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

NAME = "triggerer-demo-orders"
"""The name of the queue, or of the topic and its subscription."""
REMOVAL_S: Final = 5.0
"""The time limit, in seconds, for deleting a trial's queue and for closing the connection."""


class TrialSource(AbstractAsyncContextManager["TrialSource"], ABC):
    """A queue for one trial. Entering the context creates the queue, and leaving deletes it, if the broker allows this.

    If the broker is an embedded server, the constructor starts it.

    Attributes:
        where: A description of the broker for people.
        connection: The id and the keys of the section `[connections.<id>]`.
        trigger: The source text of the trigger, and of its import.
    Raises:
        ConfigurationError: No broker is configured. The hint says how to get one.
        BrokerUnavailable: On entry: the broker does not answer, or has no queue.
    """

    where: str
    connection: tuple[str, Mapping[str, str]]
    trigger: tuple[str, str]

    @abstractmethod
    async def publish(self, values: Sequence[bytes]) -> None:
        """Publish the values; return once the broker has confirmed all of them.

        Raises:
            BrokerError: The broker refused a message.
        """

    async def count_left(self) -> int | None:
        """Return the number of messages left at the broker; None if the broker does not report it."""
        return None

    def close(self) -> None:
        """Stop the embedded server, if there is one."""
