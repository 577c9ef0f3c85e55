"""Checks the calls of a producer's hooks of flow control against what is outstanding in its lanes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triggerer.testing.simulation.checks.checker import Checker
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message
    from triggerer.testing.simulation.kernel.scenario import Scenario


class LaneChecker:
    """Follows one producer: what is outstanding in each lane, and how its four hooks are called."""

    def __init__(
        self, scenario: Scenario, checker: Checker, lane_of: Callable[[Message], Hashable]
    ) -> None:
        self.paused: set[Hashable] = set()
        """The lanes that were paused, and not resumed since."""
        self._bound = scenario.max_outstanding_per_lane
        self._bound_bytes = scenario.max_outstanding_bytes_per_lane
        self._bound_bytes_of_all = scenario.max_outstanding_bytes
        self._checker = checker
        self._lane_of = lane_of
        self._outstanding: dict[Hashable, int] = {}
        """By lane: messages that were broadcast and are in no advance that returned."""
        self._outstanding_bytes: dict[Hashable, int] = {}
        """Their sizes."""
        self._reported: dict[Hashable, list[Delivery]] = {}
        """By lane what was reported as advanced since it was last paused: the runtime may not have looked yet."""
        self._in_hand: Delivery | None = None
        """Yielded by the stream, and not known to be broadcast yet."""
        self._touched: set[Hashable] = set()
        """The lanes from which something came, or was looked at, since they were last paused."""
        self._notifying: set[Hashable] = set()
        """The lanes for which a hook is running."""
        self.is_paused = False
        """Whether the whole stream was paused, and not resumed since."""
        self._is_pulled = True

    @property
    def held_lane(self) -> Hashable:
        """The lane of what the poll holds; None: it holds nothing."""
        return None if self._in_hand is None else self._lane_of(self._in_hand.message)

    # What goes through the lanes

    def mark_yielded(self, delivery: Delivery) -> None:
        """The stream yields it."""
        self._in_hand = delivery
        self._touched.add(self._lane_of(delivery.message))
        self._is_pulled = False

    def mark_pulled(self) -> None:
        """The runtime asks for the next message, so it has broadcast the last."""
        self._is_pulled = True
        if self.is_paused:
            self._checker.fail("S9", "a stream is pulled that was paused and not resumed")
        if self._in_hand is not None:
            self.record_broadcast(self._in_hand)

    def mark_considered(self, delivery: Delivery) -> None:
        """The runtime asks for its lane: to check the bounds, or to broadcast it."""
        self._touched.add(self._lane_of(delivery.message))

    def record_broadcast(self, delivery: Delivery) -> None:
        """It was broadcast; may be called more than once."""
        if delivery.is_broadcast:
            return
        delivery.is_broadcast = True
        self._in_hand = None
        lane = self._lane_of(delivery.message)
        count = self._outstanding[lane] = self._outstanding.get(lane, 0) + 1
        size_bytes = self._outstanding_bytes.get(lane, 0)
        # The message that reaches a bound in bytes may exceed it: one that alone is larger passes too.
        if size_bytes >= self._bound_bytes:
            self._fail_for_bytes(f"lane {lane}", size_bytes, self._bound_bytes)
        of_all = sum(self._outstanding_bytes.values())
        if of_all >= self._bound_bytes_of_all:
            self._fail_for_bytes("a stream", of_all, self._bound_bytes_of_all)
        self._outstanding_bytes[lane] = size_bytes + delivery.message.size_bytes
        self._checker.on_broadcast(delivery)
        self._checker.check_members(delivery)
        if count > self._bound:
            self._checker.fail("S9", f"lane {lane}: {count} outstanding of {self._bound}")

    def _fail_for_bytes(self, what: str, size_bytes: int, bound: int) -> None:
        self._checker.fail("S9", f"{what}: a broadcast at {size_bytes} bytes of {bound}")

    def mark_advanced(self, lane: Hashable, deliveries: Sequence[Delivery]) -> None:
        """An advance of these has returned."""
        self._outstanding[lane] -= len(deliveries)
        self._outstanding_bytes[lane] -= sum(one.message.size_bytes for one in deliveries)
        for one in deliveries:
            self._checker.catching_up.broadcasts.mark_advanced(one)

    def mark_reported(self, lane: Hashable, deliveries: Sequence[Delivery]) -> None:
        """The same, while the call that has these has not returned."""
        self.mark_advanced(lane, deliveries)
        self._reported.setdefault(lane, []).extend(deliveries)

    def _is_full(self, lane: Hashable) -> bool:
        return (
            self._outstanding.get(lane, 0) >= self._bound
            or self._outstanding_bytes.get(lane, 0) >= self._bound_bytes
        )

    # The hooks

    def record_pause(self) -> None:
        if self._is_pulled:
            self._checker.fail("S9", "pause() while the stream is being pulled")
        if self.is_paused:
            self._checker.fail("S9", "pause() of a stream that is paused")
        self.is_paused = True
        if self._in_hand is not None:
            lane = self._lane_of(self._in_hand.message)
            if lane in self.paused and lane in self._touched and self._is_full(lane):
                self._checker.fail(
                    "S9", f"lane {lane} was paused, came all the same, and is not paused again"
                )

    def record_resume(self) -> None:
        if not self.is_paused:
            self._checker.fail("S9", "resume() of a stream that is not paused")
        self.is_paused = False

    @contextmanager
    def pausing(self, lane: Hashable) -> Iterator[None]:
        """While `pause_lane` runs. A paused lane is paused again only if something still came from it."""
        if self._is_pulled:
            self._checker.fail("S9", f"pause_lane({lane}) while the stream is being pulled")
        if lane in self.paused and lane not in self._touched:
            self._checker.fail("S9", f"lane {lane} is paused again, and nothing came of it")
        held, size_bytes = self._outstanding.get(lane, 0), self._outstanding_bytes.get(lane, 0)
        if self._in_hand is not None and self._lane_of(self._in_hand.message) == lane:
            # It may be the one that filled the lane.
            held += 1
            size_bytes += self._in_hand.message.size_bytes
        reported = self._reported.pop(lane, ())
        held += len(reported)
        size_bytes += sum(one.message.size_bytes for one in reported)
        if held <= self._bound // 2 and size_bytes <= self._bound_bytes // 2:
            self._checker.fail(
                "S9",
                f"lane {lane} is paused at {held} of {self._bound},"
                f" {size_bytes} bytes of {self._bound_bytes}",
            )
        self.paused.add(lane)
        self._touched.discard(lane)
        with self._notified(lane):
            yield

    @contextmanager
    def resuming(self, lane: Hashable) -> Iterator[None]:
        """While `resume_lane` runs."""
        if lane not in self.paused:
            self._checker.fail("S9", f"lane {lane} is resumed, and was not paused")
        if self._is_full(lane):
            self._checker.fail("S9", f"lane {lane} is resumed at its bound")
        self.paused.discard(lane)
        with self._notified(lane):
            yield

    @contextmanager
    def _notified(self, lane: Hashable) -> Iterator[None]:
        if lane in self._notifying:
            self._checker.fail("S9", f"lane {lane}: a second hook before the first returned")
        self._notifying.add(lane)
        try:
            yield
        finally:
            self._notifying.discard(lane)
