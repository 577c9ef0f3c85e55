"""Names polls of a FIFO queue, so that one whose answer was lost can be asked again for the same messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from producers.sqs.errors import code_of
from triggerer.errors import BrokerUnavailable

_REPEATABLE_FOR_S: Final = 240.0
"""The service knows an attempt for five minutes."""


class Attempts:
    """The ids of polls. Without them, what a lost answer had in it would block its groups until its time is over."""

    def __init__(self) -> None:
        self._lost: list[tuple[str, float]] = []

    @contextmanager
    def attempt(self) -> Iterator[str]:
        """The id of a poll: that of one whose answer was lost, or a new one. Tells from the error whether it was."""
        now = anyio.current_time()
        self._lost = [one for one in self._lost if one[1] > now]
        identity, until = (
            self._lost.pop() if self._lost else (uuid.uuid4().hex, now + _REPEATABLE_FOR_S)
        )
        try:
            yield identity
        except BrokerUnavailable as error:
            if error.__cause__ is None or not code_of(error.__cause__):
                # There was no answer. One with an error in it had no messages.
                self._lost.append((identity, until))
            raise
        except anyio.get_cancelled_exc_class():
            # Nobody waits for the answer any longer.
            self._lost.append((identity, until))
            raise
