"""Which messages we hold, and what is to become of each. Synchronous, without I/O or a clock of its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from producers.sqs.message import Delivery, State
from producers.sqs.queue import LONGEST_VISIBILITY_S, Queue

_REMEMBERED: Final = 10_000
"""Message ids of which something is remembered: enough for what can be in flight several times over."""
_RENEWALS_PER_PERIOD: Final = 2


class InFlight:
    """The messages of one queue that are received, and neither deleted nor given back.

    One entry for each message, whatever number of times it was received meanwhile.
    """

    def __init__(self, queue: Queue, *, on_removed: Callable[[], None]) -> None:
        self._queue = queue
        self._on_removed = on_removed
        self._by_id: dict[str, Delivery] = {}
        self._by_group: dict[str, dict[Delivery, None]] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._spared: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._by_id.values())

    # Receiving

    def take(
        self, raws: Iterable[Mapping[str, Any]], now: float
    ) -> tuple[list[Delivery], list[Delivery]]:
        """Note what was received; return what is new, in order, and what only has to be deleted."""
        new, done = [], []
        for raw in raws:
            delivery = self._by_id.get(raw["MessageId"])
            if delivery is None:
                delivery = Delivery(raw, self._queue, now)
                self._by_id[delivery.id] = delivery
                if delivery.id in self._done:
                    # All that derives from it is durable; it could not be deleted when it was time to.
                    delivery.state = State.OUT
                    done.append(delivery)
                else:
                    if self._queue.is_fifo:
                        self._by_group.setdefault(delivery.lane, {})[delivery] = None
                    new.append(delivery)
            else:
                delivery.record_redelivery(raw)
                delivery.received_at = now
            self._extend(delivery, now, self._queue.lease_s)
        return new, done

    # Keeping invisible

    def due(self, now: float) -> list[Delivery]:
        """What is to be renewed now, the most urgent first, and with it what would be soon."""
        soon = now + self._queue.visibility_s / 8
        if not any(delivery.renew_at <= now for delivery in self._by_id.values()):
            return []
        due = [delivery for delivery in self._by_id.values() if delivery.renew_at <= soon]
        return sorted(due, key=_by_expiry)

    def next_due(self) -> float:
        """When the next one is to be renewed; infinity where none is."""
        return min((delivery.renew_at for delivery in self._by_id.values()), default=math.inf)

    def extension(self, delivery: Delivery, now: float) -> int:
        """For how many seconds from now a message can be kept; 0: no longer."""
        left = delivery.received_at + LONGEST_VISIBILITY_S - now
        return max(0, min(self._queue.lease_s, int(left) - 1))

    def mark_renewed(self, delivery: Delivery, sent_at: float, seconds: int) -> None:
        """It was renewed by a request that was sent at `sent_at`."""
        self._extend(delivery, sent_at, seconds)

    def mark_not_renewed(self, delivery: Delivery, now: float) -> None:
        """It could not be asked for: try again soon."""
        delivery.renew_at = now + self._queue.visibility_s / 8

    def mark_lost(self, delivery: Delivery) -> None:
        """Others can see it again, or nobody has it any more: there is nothing to renew."""
        delivery.is_lost = True
        delivery.renew_at = math.inf

    def _extend(self, delivery: Delivery, since: float, seconds: int) -> None:
        delivery.expires_at = since + seconds
        delivery.renew_at = since + min(seconds, self._queue.visibility_s) / _RENEWALS_PER_PERIOD

    # What becomes of it

    def has(self, delivery: Delivery) -> bool:
        return self._by_id.get(delivery.id) is delivery

    def remove(self, delivery: Delivery) -> None:
        """It was deleted, or is given back."""
        if self._by_id.get(delivery.id) is delivery:
            del self._by_id[delivery.id]
        if (group := self._by_group.get(delivery.lane)) is not None:
            group.pop(delivery, None)
            if not group:
                del self._by_group[delivery.lane]
        delivery.state = State.GONE
        self._on_removed()

    def behind(self, delivery: Delivery) -> Sequence[Delivery]:
        """What came after it in its message group, in order."""
        group = list(self._by_group.get(delivery.lane, ()))
        return group[group.index(delivery) + 1 :] if delivery in group else ()

    def repeat(self, delivery: Delivery) -> list[Delivery]:
        """Make new payloads of a message and of what came after it in its group, in order.

        What is told of the former ones means nothing any more. All stay invisible to others, and the service counts no
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
        """It is done, and could not be deleted: when it comes again, it only has to be deleted."""
        _remember(self._done, delivery.id, None)
        self.remove(delivery)

    def forget_done(self, delivery: Delivery) -> None:
        self._done.pop(delivery.id, None)

    # Counting

    def spare(self, delivery: Delivery) -> None:
        """This delivery is no failure of the message."""
        _remember(self._spared, delivery.id, self._spared.pop(delivery.id, 0) + 1)

    def failures(self, delivery: Delivery) -> int:
        """How often the message has failed, now included, by the service's count of deliveries."""
        return max(1, delivery.deliveries - self._spared.get(delivery.id, 0))


def _by_expiry(delivery: Delivery) -> float:
    return delivery.expires_at


def _remember(memory: OrderedDict[str, Any], key: str, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
