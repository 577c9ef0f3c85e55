"""The messages in flight of one queue, and their renewals. Synchronous, without I/O or a clock of its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from producers.sqs.message import Delivery, State
from producers.sqs.queue import LONGEST_VISIBILITY_S, Queue

_REMEMBERED: Final = 10_000
"""The number of message ids to remember: ten times the default of `max_in_flight`."""
_RENEWALS_PER_PERIOD: Final = 2


class InFlight:
    """The messages that were received, and neither deleted nor given back.

    Each message has one entry, even if it was received several times.
    """

    def __init__(self, queue: Queue, *, on_removed: Callable[[], None]) -> None:
        self._queue = queue
        self._on_removed = on_removed
        self._by_id: dict[str, Delivery] = {}
        self._by_group: dict[str, dict[Delivery, None]] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._excluded: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._by_id.values())

    # Receiving

    def take(
        self, raws: Iterable[Mapping[str, Any]], now: float
    ) -> tuple[list[Delivery], list[Delivery]]:
        """Record received messages. Return the new messages, in order, and the finished messages.

        The events of a finished message are stored, so the message only has to be deleted. A message that is in flight
        already is in neither list; its delivery gets the newer receipt handle.
        """
        new, done = [], []
        for raw in raws:
            delivery = self._by_id.get(raw["MessageId"])
            if delivery is None:
                delivery = Delivery(raw, self._queue, now)
                self._by_id[delivery.id] = delivery
                if delivery.id in self._done:
                    # The message's events are stored, but the message was not deleted before it became visible again.
                    # Only delete it.
                    delivery.state = State.OUT
                    done.append(delivery)
                else:
                    if self._queue.is_fifo:
                        self._by_group.setdefault(delivery.lane, {})[delivery] = None
                    new.append(delivery)
            else:
                delivery.record_redelivery(raw)
                delivery.received_at = now
                # The message came again because it was not renewed in time. No watcher has failed it.
                self.exclude_from_failures(delivery)
            self._extend(delivery, now, self._queue.lease_s)
        return new, done

    # Renewals

    def due(self, now: float) -> list[Delivery]:
        """Return the messages to renew now, the most urgent first; empty if none is due yet.

        If a message is due now, messages that are due soon are included.
        """
        soon = now + self._queue.visibility_s / 8
        if not any(delivery.renew_at <= now for delivery in self._by_id.values()):
            return []
        due = [delivery for delivery in self._by_id.values() if delivery.renew_at <= soon]
        return sorted(due, key=_by_expiry)

    def next_due(self) -> float:
        """Return the time of the next renewal. Infinity: no message needs one."""
        return min((delivery.renew_at for delivery in self._by_id.values()), default=math.inf)

    def extension(self, delivery: Delivery, now: float) -> int:
        """Return the seconds for which a message can stay invisible from now on; 0 once SQS's limit is reached."""
        left = delivery.received_at + LONGEST_VISIBILITY_S - now
        return max(0, min(self._queue.lease_s, int(left) - 1))

    def mark_renewed(self, delivery: Delivery, sent_at: float, seconds: int) -> None:
        """Record that a message stays invisible for `seconds`, counted from `sent_at`, when the request was sent."""
        self._extend(delivery, sent_at, seconds)

    def mark_not_renewed(self, delivery: Delivery, now: float) -> None:
        """Make the next renewal due soon, because a renewal failed or has only begun."""
        delivery.renew_at = now + self._queue.visibility_s / 8

    def mark_lost(self, delivery: Delivery) -> None:
        """Record that the message is deleted, or visible to other receivers, so that it needs no renewal."""
        delivery.is_lost = True
        delivery.renew_at = math.inf

    def _extend(self, delivery: Delivery, since: float, seconds: int) -> None:
        delivery.expires_at = since + seconds
        delivery.renew_at = since + min(seconds, self._queue.visibility_s) / _RENEWALS_PER_PERIOD

    # The end of a delivery

    def has(self, delivery: Delivery) -> bool:
        return self._by_id.get(delivery.id) is delivery

    def remove(self, delivery: Delivery) -> None:
        """Remove a message that was deleted or is given back."""
        if self._by_id.get(delivery.id) is delivery:
            del self._by_id[delivery.id]
        if (group := self._by_group.get(delivery.lane)) is not None:
            group.pop(delivery, None)
            if not group:
                del self._by_group[delivery.lane]
        delivery.state = State.GONE
        self._on_removed()

    def behind(self, delivery: Delivery) -> Sequence[Delivery]:
        """Return the messages in flight that come after this one in its group, in order."""
        group = list(self._by_group.get(delivery.lane, ()))
        return group[group.index(delivery) + 1 :] if delivery in group else ()

    def repeat(self, delivery: Delivery) -> list[Delivery]:
        """Return new deliveries, in order, for a message and the later messages of its group, to yield them again.

        Outcomes of the old deliveries are ignored. The messages stay invisible to other receivers, and SQS counts no
        delivery.
        """
        again = {one: one.repeated() for one in (delivery, *self.behind(delivery))}
        for before, after in again.items():
            before.state = State.GONE
            self._by_id[after.id] = after
        if (group := self._by_group.get(delivery.lane)) is not None:
            self._by_group[delivery.lane] = {again.get(one, one): None for one in group}
        return list(again.values())

    def mark_done(self, delivery: Delivery) -> None:
        """Remember a finished message that could not be deleted. When it comes again, it only has to be deleted."""
        _remember(self._done, delivery.id, None)
        self.remove(delivery)

    def forget_done(self, delivery: Delivery) -> None:
        self._done.pop(delivery.id, None)

    # Counting

    def exclude_from_failures(self, delivery: Delivery) -> None:
        """Exclude this delivery from the message's `failures`.

        Exclusions are in memory. After a restart, the excluded deliveries count as failures, because SQS counts all
        deliveries.
        """
        _remember(self._excluded, delivery.id, self._excluded.pop(delivery.id, 0) + 1)

    def failures(self, delivery: Delivery) -> int:
        """Return the number of the message's failures, including this one: SQS's deliveries, less the excluded ones."""
        return max(1, delivery.deliveries - self._excluded.get(delivery.id, 0))


def _by_expiry(delivery: Delivery) -> float:
    return delivery.expires_at


def _remember(memory: OrderedDict[str, Any], key: str, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
