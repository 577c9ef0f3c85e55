"""Awaits the SDK's calls that settle messages and renew locks, each with a deadline."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

import anyio
from azure.servicebus import exceptions as sdk_errors

from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import guarded
from triggerer.errors import BrokerError, BrokerUnavailable

T = TypeVar("T")

_LOST: Final = (
    sdk_errors.MessageLockLostError,
    sdk_errors.MessageAlreadySettled,
    sdk_errors.SessionLockLostError,
)


class Calls:
    """Awaits the calls of one stream.

    Args:
        what: The stream's name, as the beginning of error texts.
    """

    def __init__(self, what: str, entity: EntityPath, timeout_s: float) -> None:
        self.what = what
        self._entity = entity
        self._timeout_s = timeout_s

    async def __call__(self, call: Awaitable[T]) -> T:
        """Await the SDK's answer.

        Raises:
            BrokerUnavailable, BrokerRefused: The call failed, or was not answered in time.
            The SDK's own error: The lock is lost, or the message was settled before.
        """
        try:
            with anyio.fail_after(self._timeout_s):
                return await guarded(call, self.what, self._entity)
        except TimeoutError as error:
            raise BrokerUnavailable(f"{self.what}: no answer in {self._timeout_s:g} s") from error
        except BrokerError as error:
            if isinstance(error.__cause__, _LOST):
                raise error.__cause__ from None
            raise
