"""The messages that were received and not yielded yet, in order. A paused stream or lane yields no message."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable

import anyio

from producers.sqs.message import Delivery, State


class ReceivedMessages:
    """The received messages, which can be paused as a whole and by lane. `Receiving` limits their number."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._stashed: dict[Hashable, list[Delivery]] = {}
        """The messages of each paused lane, in order."""
        self._later: deque[tuple[float, list[Delivery]]] = deque()
        """Lists of messages to yield later, each with its due time by the event loop's clock. Not sorted."""
        self._is_paused = False
        self._has_changed = anyio.Event()

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def put(self, messages: Iterable[Delivery]) -> None:
        self._waiting.extend(messages)
        self._has_changed.set()

    def put_later(self, messages: list[Delivery], at: float) -> None:
        """Let `get` return these messages, but not before the time `at`."""
        self._later.append((at, messages))
        self._has_changed.set()

    async def get(self) -> Delivery:
        """Wait for the next message, mark it as yielded, and return it."""
        while True:
            next_at = self._put_due() if self._later else math.inf
            if not self._is_paused and (delivery := self._next()) is not None:
                delivery.state = State.OUT
                return delivery
            self._has_changed = anyio.Event()
            with anyio.CancelScope(deadline=next_at):
                await self._has_changed.wait()

    def _put_due(self) -> float:
        """Put the messages that are due now where `get` finds them. Return when the next messages are due."""
        now = anyio.current_time()
        later, self._later = self._later, deque()
        for at, messages in later:
            if at > now:
                self._later.append((at, messages))
            else:
                self._waiting.extend(messages)
        return min((at for at, _ in self._later), default=math.inf)

    def _next(self) -> Delivery | None:
        while self._waiting:
            delivery = self._waiting.popleft()
            if delivery.state is not State.WAITING:
                # Skip a message that was given back while it waited here.
                continue
            if (stashed := self._stashed.get(delivery.lane)) is None:
                return delivery
            stashed.append(delivery)
        return None

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._has_changed.set()

    def pause_lane(self, lane: Hashable) -> None:
        self._stashed.setdefault(lane, [])

    def resume_lane(self, lane: Hashable) -> None:
        # Put the messages that were stashed during the pause first: later messages of the lane may be waiting already.
        self._waiting.extendleft(reversed(self._stashed.pop(lane, [])))
        self._has_changed.set()
