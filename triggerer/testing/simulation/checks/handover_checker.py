"""Checks the handover: no message goes both to a filter that catches up and to the live filter (rule 18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message


class HandoverChecker:
    """Compares the messages of each live filter with the messages that its watcher passed while it caught up.

    The store would not show that a watcher got a message twice, because idempotency keys absorb the second events.

    Args:
        fail: Called with the rule that was broken, and how.
        was_advanced: Returns True if an advance with the message has returned. If the broker delivers such a message
            again, a repeat is no violation.
    """

    def __init__(
        self, fail: Callable[[str, str], None], was_advanced: Callable[[Message], bool]
    ) -> None:
        self._fail = fail
        self._was_advanced = was_advanced
        self._broadcast: dict[str, list[Delivery]] = {}
        """The broadcast deliveries of each message."""

    def on_broadcast(self, delivery: Delivery) -> None:
        """Record a broadcast to the live filters."""
        self._broadcast.setdefault(delivery.message.key, []).append(delivery)

    def on_passed(self, watcher: int, message: Message) -> None:
        """Record that the watcher's catch-up has passed a message."""
        for delivery in self._broadcast.get(message.key, ()):
            delivery.caught_up.add(watcher)

    def on_opened_live(self, watcher: int, delivery: Delivery) -> None:
        """Check a message that the watcher's live filter receives."""
        message = delivery.message
        if watcher in delivery.caught_up and not self._was_advanced(message):
            self._fail(
                "S13",
                f"watcher {watcher} passed {message.key} while it caught up, and now reads it live",
            )
