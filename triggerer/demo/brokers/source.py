"""What the trial needs of a broker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

NAME = "triggerer-demo-orders"
"""Of the queue, or of the topic and its subscription."""
REMOVAL_S: Final = 5.0
"""How long a broker may take to remove what a trial has made."""


class TrialSource(AbstractAsyncContextManager["TrialSource"], ABC):
    """A queue of the trial's own, and who publishes to it; made on entry, and gone at the end where the broker can.

    The constructor starts the server, if it is an embedded one.

    Attributes:
        where: The broker, for people.
        connection: The section `[connections.<id>]` by which the service reaches it: its id, and its keys.
        trigger: The source text of the trigger, and of the import that it needs.
    Raises:
        ConfigurationError: No such broker is at hand; the hint says how to get one.
        BrokerUnavailable: On entry: it does not answer, or has no queue.
    """

    where: str
    connection: tuple[str, Mapping[str, str]]
    trigger: tuple[str, str]

    @abstractmethod
    async def publish(self, values: Sequence[bytes]) -> None:
        """Return once the broker has them all.

        Raises:
            BrokerError: It has not taken one.
        """

    async def count_left(self) -> int | None:
        """How many messages the broker still holds for the watcher; None: it does not say."""
        return None

    def close(self) -> None:
        """Stop the embedded server."""
