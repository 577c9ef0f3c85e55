"""Which messages we hold, and what is to become of each. Synchronous, without I/O or a clock of its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from producers.sqs.message import Held, State
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
        self._held: dict[str, Held] = {}
        self._by_group: dict[str, dict[Held, None]] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._spared: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    # Receiving

    def take(self, raws: Iterable[Mapping[str, Any]], now: float) -> tuple[list[Held], list[Held]]:
        """Note what was received; return what is new, in order, and what only has to be deleted."""
        new, done = [], []
        for raw in raws:
            held = self._held.get(raw["MessageId"])
            if held is None:
                held = Held(raw, self._queue, now)
                self._held[held.id] = held
                if held.id in self._done:
                    # All that derives from it is durable; it could not be deleted when it was time to.
                    held.state = State.OUT
                    done.append(held)
                else:
                    if self._queue.is_fifo:
                        self._by_group.setdefault(held.lane, {})[held] = None
                    new.append(held)
            else:
                held.record_redelivery(raw)
                held.received_at = now
            self._extend(held, now, self._queue.lease_s)
        return new, done

    # Keeping invisible

    def due(self, now: float) -> list[Held]:
        """What is to be renewed now, the most urgent first, and with it what would be soon."""
        soon = now + self._queue.visibility_s / 8
        if not any(held.renew_at <= now for held in self._held.values()):
            return []
        due = [held for held in self._held.values() if held.renew_at <= soon]
        return sorted(due, key=_by_expiry)

    def next_due(self) -> float:
        """When the next one is to be renewed; infinity where none is."""
        return min((held.renew_at for held in self._held.values()), default=math.inf)

    def extension(self, held: Held, now: float) -> int:
        """For how many seconds from now a message can be kept; 0: no longer."""
        left = held.received_at + LONGEST_VISIBILITY_S - now
        return max(0, min(self._queue.lease_s, int(left) - 1))

    def mark_renewed(self, held: Held, sent_at: float, seconds: int) -> None:
        """It was renewed by a request that was sent at `sent_at`."""
        self._extend(held, sent_at, seconds)

    def mark_not_renewed(self, held: Held, now: float) -> None:
        """It could not be asked for: try again soon."""
        held.renew_at = now + self._queue.visibility_s / 8

    def mark_lost(self, held: Held) -> None:
        """Others can see it again, or nobody has it any more: there is nothing to renew."""
        held.is_lost = True
        held.renew_at = math.inf

    def _extend(self, held: Held, since: float, seconds: int) -> None:
        held.expires_at = since + seconds
        held.renew_at = since + min(seconds, self._queue.visibility_s) / _RENEWALS_PER_PERIOD

    # What becomes of it

    def is_held(self, held: Held) -> bool:
        return self._held.get(held.id) is held

    def remove(self, held: Held) -> None:
        """It was deleted, or is given back."""
        if self._held.get(held.id) is held:
            del self._held[held.id]
        if (group := self._by_group.get(held.lane)) is not None:
            group.pop(held, None)
            if not group:
                del self._by_group[held.lane]
        held.state = State.GONE
        self._on_removed()

    def behind(self, held: Held) -> Sequence[Held]:
        """What came after it in its message group, in order."""
        group = list(self._by_group.get(held.lane, ()))
        return group[group.index(held) + 1 :] if held in group else ()

    def repeat(self, held: Held) -> list[Held]:
        """Make new payloads of a message and of what came after it in its group, in order.

        What is told of the former ones means nothing any more. All stay invisible to others, and the service counts no
        delivery.
        """
        again = {one: one.repeated() for one in (held, *self.behind(held))}
        for before, after in again.items():
            before.state = State.GONE
            self._held[after.id] = after
        if (group := self._by_group.get(held.lane)) is not None:
            self._by_group[held.lane] = {again.get(one, one): None for one in group}
        return list(again.values())

    def mark_done(self, held: Held) -> None:
        """It is done, and could not be deleted: when it comes again, it only has to be deleted."""
        _remember(self._done, held.id, None)
        self.remove(held)

    def forget_done(self, held: Held) -> None:
        self._done.pop(held.id, None)

    # Counting

    def spare(self, held: Held) -> None:
        """This delivery is no failure of the message."""
        _remember(self._spared, held.id, self._spared.pop(held.id, 0) + 1)

    def failures(self, held: Held) -> int:
        """How often the message has failed, now included, by the service's count of deliveries."""
        return max(1, held.deliveries - self._spared.get(held.id, 0))


def _by_expiry(held: Held) -> float:
    return held.expires_at


def _remember(memory: OrderedDict[str, Any], key: str, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
