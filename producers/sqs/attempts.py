"""The ids of the polls of a FIFO queue. If an answer is lost, a poll with the same id returns the same messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from producers.sqs.errors import code_of
from triggerer.errors import BrokerUnavailable

_REPEATABLE_FOR_S: Final = 240.0
"""A poll can be repeated for this long. SQS remembers its id for five minutes."""


class Attempts:
    """The ids of polls. If the answer to a poll is lost, a later poll uses the id again, and gets the lost messages.

    Otherwise the lost messages would block their message groups until the visibility timeout ends.
    """

    def __init__(self) -> None:
        self._lost: list[tuple[str, float]] = []

    @contextmanager
    def attempt(self) -> Iterator[str]:
        """Yield the id of a poll whose answer was lost, or else a new id."""
        now = anyio.current_time()
        self._lost = [one for one in self._lost if one[1] > now]
        identity, until = (
            self._lost.pop() if self._lost else (uuid.uuid4().hex, now + _REPEATABLE_FOR_S)
        )
        try:
            yield identity
        except BrokerUnavailable as error:
            if error.__cause__ is None or not code_of(error.__cause__):
                # The error is not an answer from SQS, so an answer with messages may be lost. Use the id again.
                self._lost.append((identity, until))
            raise
        except anyio.get_cancelled_exc_class():
            # The poll was cancelled, so its answer is lost.
            self._lost.append((identity, until))
            raise
