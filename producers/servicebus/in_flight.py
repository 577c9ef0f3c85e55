"""The messages in flight, and the keys of finished ones. Synchronous; runs in the SDK's thread."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from producers.servicebus.message import Delivery, Holder

_REMEMBERED: Final = 10_000
"""The number of keys of finished messages to remember: twenty times the default of `max_in_flight`."""


class InFlight:
    """The messages of one stream that were passed to the producer and are not settled.

    If a lock is lost while a watcher works on the message, the message comes again with a new lock. Then the existing
    `Delivery` gets the new lock, and no watcher receives the message again. Otherwise a watcher that works longer than
    a lock lasts would never finish.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Delivery] = {}
        self._done: OrderedDict[str, None] = OrderedDict()

    def add(self, delivery: Delivery) -> None:
        """Add a message that is passed to the producer."""
        self._by_key[delivery.key] = delivery

    def find(self, key: str) -> Delivery | None:
        return self._by_key.get(key)

    def is_done(self, key: str) -> bool:
        """True if the message's events are stored. If it comes again, only complete it."""
        return key in self._done

    def forget(self, delivery: Delivery) -> None:
        """Remove a message, so that it is passed to the producer again when it comes again."""
        if self._by_key.get(delivery.key) is delivery:
            del self._by_key[delivery.key]

    def forget_locked_by(self, holder: Holder) -> None:
        """Remove all messages that `holder` has locked.

        Called when a message of a session is given back. The session's later messages then come again too.
        """
        for delivery in [one for one in self._by_key.values() if one.link is holder]:
            self.forget(delivery)

    def mark_done(self, delivery: Delivery, *, is_completed: bool) -> None:
        """Record that the message's events are stored.

        If the message is not completed yet, remember its key. When the message comes again, it is completed, and no
        watcher receives it.
        """
        self.forget(delivery)
        if is_completed:
            self._done.pop(delivery.key, None)
            return
        self._done[delivery.key] = None
        self._done.move_to_end(delivery.key)
        if len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
