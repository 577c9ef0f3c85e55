"""Which messages the watchers have in hand, and which are done. Synchronous; all of it in the SDK's thread."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from producers.servicebus.message import Delivery, Holder

_REMEMBERED: Final = 10_000
"""Keys of messages that are done and could not be completed: enough for what can be in flight several times over."""


class InFlight:
    """The messages of one stream that were handed over, and not answered.

    A lock may be lost while a watcher still works: the message comes again, and nobody else can settle it but by the
    new lock. Were it handed over once more, a watcher that always takes longer than a lock would never be done: each
    time there would be one more of each message before it. So it is the same delivery, with another lock.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, Delivery] = {}
        self._done: OrderedDict[str, None] = OrderedDict()

    def add(self, delivery: Delivery) -> None:
        """It is handed over."""
        self._by_key[delivery.key] = delivery

    def find(self, key: str) -> Delivery | None:
        return self._by_key.get(key)

    def is_done(self, key: str) -> bool:
        """Whether all that derives from it is durable, and it only has to be completed."""
        return key in self._done

    def forget(self, delivery: Delivery) -> None:
        """The watchers are through with it; when it comes again, it is handed over again."""
        if self._by_key.get(delivery.key) is delivery:
            del self._by_key[delivery.key]

    def forget_locked_by(self, holder: Holder) -> None:
        """Its messages are given back, and come again in order, behind one that failed."""
        for delivery in [one for one in self._by_key.values() if one.link is holder]:
            self.forget(delivery)

    def mark_done(self, delivery: Delivery, *, is_completed: bool) -> None:
        """All that derives from it is durable."""
        self.forget(delivery)
        if is_completed:
            self._done.pop(delivery.key, None)
            return
        self._done[delivery.key] = None
        self._done.move_to_end(delivery.key)
        if len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
