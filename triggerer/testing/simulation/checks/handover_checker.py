"""What must hold where a filter that catches up meets the live one: nothing is given to both (rule 18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message


class HandoverChecker:
    """Compares what live filters are given with what the watcher has passed while it caught up.

    Keys absorb what derives from a repeat, so that nothing that is durable tells of it.

    Args:
        fail: Called with the rule that was broken, and how.
        was_advanced: True if an advance with the message returned; the broker may still deliver it again.
    """

    def __init__(
        self, fail: Callable[[str, str], None], was_advanced: Callable[[Message], bool]
    ) -> None:
        self._fail = fail
        self._was_advanced = was_advanced
        self._broadcast: dict[str, list[Delivery]] = {}
        """By message its deliveries that were broadcast."""

    def on_broadcast(self, delivery: Delivery) -> None:
        """It is given to the live filters."""
        self._broadcast.setdefault(delivery.message.key, []).append(delivery)

    def on_passed(self, watcher: int, message: Message) -> None:
        """A filter of the watcher's that catches up has moved past a message of a lane."""
        for delivery in self._broadcast.get(message.key, ()):
            delivery.caught_up.add(watcher)

    def on_opened_live(self, watcher: int, delivery: Delivery) -> None:
        """The watcher's live filter is given it."""
        message = delivery.message
        if watcher in delivery.caught_up and not self._was_advanced(message):
            self._fail(
                "S13",
                f"watcher {watcher} has passed {message.key} while it caught up, and reads it live",
            )
