"""Checks the calls of a producer's flow control against the outstanding messages of its lanes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triggerer.testing.simulation.checks.checker import Checker
    from triggerer.testing.simulation.kernel.delivery import Delivery, Message
    from triggerer.testing.simulation.kernel.scenario import Scenario


class LaneChecker:
    """Observes the outstanding messages of one producer, and the calls that pause or resume its stream or a lane."""

    def __init__(
        self, scenario: Scenario, checker: Checker, lane_of: Callable[[Message], Hashable]
    ) -> None:
        self.paused: set[Hashable] = set()
        """The lanes that were paused and not resumed."""
        self._bound = scenario.max_outstanding_per_lane
        self._bound_bytes = scenario.max_outstanding_bytes_per_lane
        self._bound_bytes_of_all = scenario.max_outstanding_bytes
        self._checker = checker
        self._lane_of = lane_of
        self._outstanding: dict[Hashable, int] = {}
        """By lane, the number of messages that were broadcast and whose advance has not returned."""
        self._outstanding_bytes: dict[Hashable, int] = {}
        """The size of the outstanding messages, by lane."""
        self._reported: dict[Hashable, list[Delivery]] = {}
        """By lane, the deliveries that were reported as advanced since the lane's last pause.

        The runtime may not have handled the reports yet.
        """
        self._pulled: Delivery | None = None
        """The last delivery that the stream yielded; None once its broadcast is recorded."""
        self._touched: set[Hashable] = set()
        """The lanes for which the runtime has pulled a message, or has called `get_advance_lane`, since their last
        pause.
        """
        self._notifying: set[Hashable] = set()
        """The lanes for which `pause_lane` or `resume_lane` is running."""
        self.is_paused = False
        """Whether the whole stream was paused and not resumed."""
        self._is_pulled = True

    @property
    def pulled_lane(self) -> Hashable:
        """The lane of the message that the runtime has pulled but not broadcast; None if there is no such message."""
        return None if self._pulled is None else self._lane_of(self._pulled.message)

    # Messages

    def mark_yielded(self, delivery: Delivery) -> None:
        """Record that the stream yields a delivery."""
        self._pulled = delivery
        self._touched.add(self._lane_of(delivery.message))
        self._is_pulled = False

    def mark_pulled(self) -> None:
        """Record that the runtime pulls again, so it has broadcast the last message."""
        self._is_pulled = True
        if self.is_paused:
            self._checker.fail("S9", "a paused stream is pulled")
        if self._pulled is not None:
            self.record_broadcast(self._pulled)

    def mark_considered(self, delivery: Delivery) -> None:
        """Record a call of `get_advance_lane`. The runtime calls it to check the bounds, and when it broadcasts."""
        self._touched.add(self._lane_of(delivery.message))

    def record_broadcast(self, delivery: Delivery) -> None:
        """Record a broadcast. A second call for a delivery does nothing."""
        if delivery.is_broadcast:
            return
        delivery.is_broadcast = True
        self._pulled = None
        lane = self._lane_of(delivery.message)
        count = self._outstanding[lane] = self._outstanding.get(lane, 0) + 1
        size_bytes = self._outstanding_bytes.get(lane, 0)
        # Leave out the bytes of this message. Otherwise a message that is larger than the bound could never be
        # broadcast.
        if size_bytes >= self._bound_bytes:
            self._fail_for_bytes(f"lane {lane}", size_bytes, self._bound_bytes)
        of_all = sum(self._outstanding_bytes.values())
        if of_all >= self._bound_bytes_of_all:
            self._fail_for_bytes("a stream", of_all, self._bound_bytes_of_all)
        self._outstanding_bytes[lane] = size_bytes + delivery.message.size_bytes
        self._checker.on_broadcast(delivery)
        self._checker.check_members(delivery)
        if count > self._bound:
            self._checker.fail(
                "S9", f"lane {lane}: {count} outstanding, the bound is {self._bound}"
            )

    def _fail_for_bytes(self, what: str, size_bytes: int, bound: int) -> None:
        self._checker.fail("S9", f"{what}: a broadcast at {size_bytes} bytes, the bound is {bound}")

    def mark_advanced(self, lane: Hashable, deliveries: Sequence[Delivery]) -> None:
        """Record that the advance of these deliveries has returned."""
        self._outstanding[lane] -= len(deliveries)
        self._outstanding_bytes[lane] -= sum(one.message.size_bytes for one in deliveries)
        for one in deliveries:
            self._checker.catching_up.broadcasts.mark_advanced(one)

    def mark_reported(self, lane: Hashable, deliveries: Sequence[Delivery]) -> None:
        """Record that these deliveries are reported as advanced before the call that advances them has returned."""
        self.mark_advanced(lane, deliveries)
        self._reported.setdefault(lane, []).extend(deliveries)

    def _is_full(self, lane: Hashable) -> bool:
        return (
            self._outstanding.get(lane, 0) >= self._bound
            or self._outstanding_bytes.get(lane, 0) >= self._bound_bytes
        )

    # Flow control

    def record_pause(self) -> None:
        if self._is_pulled:
            self._checker.fail("S9", "pause() while the stream is being pulled")
        if self.is_paused:
            self._checker.fail("S9", "pause() of a stream that is paused")
        self.is_paused = True
        if self._pulled is not None:
            lane = self._lane_of(self._pulled.message)
            if lane in self.paused and lane in self._touched and self._is_full(lane):
                self._checker.fail(
                    "S9", f"the paused lane {lane} delivered a message and is not paused again"
                )

    def record_resume(self) -> None:
        if not self.is_paused:
            self._checker.fail("S9", "resume() of a stream that is not paused")
        self.is_paused = False

    @contextmanager
    def pausing(self, lane: Hashable) -> Iterator[None]:
        """Check a call of `pause_lane`.

        A second pause is allowed only if the lane has delivered a message since the first pause.
        """
        if self._is_pulled:
            self._checker.fail("S9", f"pause_lane({lane}) while the stream is being pulled")
        if lane in self.paused and lane not in self._touched:
            self._checker.fail("S9", f"lane {lane} is paused again, but delivered no message")
        count, size_bytes = self._outstanding.get(lane, 0), self._outstanding_bytes.get(lane, 0)
        if self._pulled is not None and self._lane_of(self._pulled.message) == lane:
            # Count the pulled message too, because it may have filled the lane.
            count += 1
            size_bytes += self._pulled.message.size_bytes
        reported = self._reported.pop(lane, ())
        count += len(reported)
        size_bytes += sum(one.message.size_bytes for one in reported)
        if count <= self._bound // 2 and size_bytes <= self._bound_bytes // 2:
            self._checker.fail(
                "S9",
                f"lane {lane} is paused at {count} messages and {size_bytes} bytes,"
                f" the bounds are {self._bound} and {self._bound_bytes}",
            )
        self.paused.add(lane)
        self._touched.discard(lane)
        with self._notified(lane):
            yield

    @contextmanager
    def resuming(self, lane: Hashable) -> Iterator[None]:
        """Check a call of `resume_lane`."""
        if lane not in self.paused:
            self._checker.fail("S9", f"lane {lane} is resumed, but was not paused")
        if self._is_full(lane):
            self._checker.fail("S9", f"lane {lane} is resumed at its bound")
        self.paused.discard(lane)
        with self._notified(lane):
            yield

    @contextmanager
    def _notified(self, lane: Hashable) -> Iterator[None]:
        if lane in self._notifying:
            self._checker.fail("S9", f"lane {lane}: a second call before the first returned")
        self._notifying.add(lane)
        try:
            yield
        finally:
            self._notifying.discard(lane)
