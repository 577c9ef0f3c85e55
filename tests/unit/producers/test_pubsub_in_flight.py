"""Messages in flight: bounds, ordering keys, failures and redeliveries."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from producers.pubsub.failures import Failures
from producers.pubsub.in_flight import COMES_AGAIN_WITHIN_S, InFlight
from producers.pubsub.message import Delivery
from triggerer.abc import BrokerMessage


def delivery(message_id: str, key: str = "", *, attempt: int = 1, size: int = 1) -> Delivery:
    lane = f"key:{key}" if key else f"message:{message_id}"
    ack_id = f"{message_id}:{attempt}"
    message: Any = BrokerMessage(b"")
    return Delivery(message, message_id, ack_id, key, lane, size)


def make_in_flight(
    *, max_messages: int = 100, max_bytes: int = 1_000, max_delayed: int = 50
) -> InFlight:
    return InFlight(max_messages=max_messages, max_bytes=max_bytes, max_delayed=max_delayed)


def ready_ids(in_flight: InFlight) -> list[str]:
    found = []
    while (one := in_flight.take()) is not None:
        found.append(one.message_id)
    return found


def filled(*deliveries: Delivery, **bounds: int) -> InFlight:
    made = make_in_flight(**bounds)
    for one in deliveries:
        made.add(one)
    return made


def test_it_is_full_at_its_number_and_at_its_bytes() -> None:
    assert not filled(delivery("a"), max_messages=2).is_full
    assert filled(delivery("a"), delivery("b"), max_messages=2).is_full
    assert filled(delivery("a", size=1_000)).is_full


def test_a_message_without_a_key_fails_alone() -> None:
    a, b = delivery("a"), delivery("b")
    in_flight = filled(a, b)
    assert ready_ids(in_flight) == ["a", "b"]
    in_flight.fail(a, 0.0, 5.0)
    assert (a.is_stale, b.is_stale) == (True, False)
    assert in_flight.next_at() == 5.0
    assert in_flight.take_due(4.9) == []
    assert in_flight.take_due(5.0) == [a]
    assert list(in_flight) == [b]


def test_what_follows_a_failed_message_under_its_key_waits_until_that_has_come_again() -> None:
    a, b, c, other = delivery("a", "k"), delivery("b", "k"), delivery("c", "k"), delivery("d", "o")
    in_flight = filled(a, b, c, other)
    assert [in_flight.take() for _ in range(3)] == [a, b, c]
    in_flight.settle(a)
    in_flight.fail(b, 0.0, 5.0)
    assert [one.is_stale for one in (a, b, c)] == [True] * 3
    assert ready_ids(in_flight) == ["d"], "c must not be processed before b has come again"
    in_flight.add(delivery("e", "k"))
    assert ready_ids(in_flight) == []
    assert in_flight.take_due(5.0) == [b], "c and e did not fail"
    assert ready_ids(in_flight) == []
    in_flight.add(delivery("b", "k", attempt=2))
    assert ready_ids(in_flight) == ["b", "c", "e"]
    # Pub/Sub delivers "c" again, because it comes after "b", which was given back.
    assert in_flight.add(delivery("c", "k", attempt=2)) is not None
    assert ready_ids(in_flight) == []
    assert {one.message_id: one.ack_id for one in in_flight} == {
        "a": "a:1", "d": "d:1", "b": "b:2", "c": "c:2", "e": "e:1"
    }  # fmt: skip


def test_what_was_yielded_and_held_back_is_yielded_again_as_another_delivery() -> None:
    a, b = delivery("a", "k"), delivery("b", "k")
    in_flight = filled(a, b)
    ready_ids(in_flight)
    in_flight.fail(a, 0.0, 1.0)
    in_flight.take_due(1.0)
    in_flight.add(delivery("a", "k", attempt=2))
    again = [in_flight.take(), in_flight.take()]
    assert again[1] is not b
    assert again[1] is in_flight.find("b")
    assert b.is_stale
    assert not again[1].is_stale  # type: ignore[union-attr]


def test_a_lane_waits_only_so_long_for_a_message_that_may_have_been_dead_lettered() -> None:
    a = delivery("a", "k")
    in_flight = filled(a)
    ready_ids(in_flight)
    in_flight.fail(a, 0.0, 1.0)
    in_flight.take_due(1.0)
    in_flight.add(delivery("b", "k"))
    in_flight.add(delivery("c", "k"))
    assert in_flight.next_at() == 1.0 + COMES_AGAIN_WITHIN_S
    in_flight.take_due(1.0 + COMES_AGAIN_WITHIN_S)
    assert ready_ids(in_flight) == ["b", "c"]
    assert in_flight.next_at() is None


def test_a_message_that_comes_again_while_it_is_in_hand_is_the_same_with_a_newer_id() -> None:
    a = delivery("a")
    in_flight = filled(a)
    assert in_flight.take() is a
    assert in_flight.add(delivery("a", attempt=2)) is a
    assert (a.ack_id, len(in_flight)) == ("a:2", 1)
    assert ready_ids(in_flight) == []


def test_messages_that_fail_are_given_more_room_beside_the_others() -> None:
    poison = [delivery(f"p{number}") for number in range(10)]
    in_flight = filled(*poison, max_messages=10)
    assert in_flight.make_room() == (10, 1_000)
    assert in_flight.is_full
    ready_ids(in_flight)
    for one in poison[:5]:
        in_flight.fail(one, 0.0, 100.0)
    assert not in_flight.wants_room
    in_flight.fail(poison[5], 0.0, 100.0)
    assert in_flight.wants_room
    assert in_flight.make_room() == (22, 1_012)
    assert not in_flight.wants_room
    assert not in_flight.is_full
    assert len(in_flight.take_due(100.0)) == 6
    assert in_flight.make_room() == (10, 1_000)


def test_more_messages_that_fail_than_may_be_held_go_back_after_a_second() -> None:
    poison = [delivery(f"p{number}") for number in range(10)]
    in_flight = filled(*poison, max_delayed=7)
    ready_ids(in_flight)
    for number, one in enumerate(poison):
        in_flight.fail(one, 0.0, 100.0 + number)
    assert in_flight.next_at() == 1.0
    assert in_flight.take_due(0.9) == []
    assert in_flight.take_due(1.0) == poison[:3], "those that were due first"
    assert in_flight.next_at() == 103.0


def test_a_paused_lane_yields_nothing_and_goes_on_in_order() -> None:
    in_flight = filled(delivery("a", "k"), delivery("b", "k"), delivery("x", "o"))
    in_flight.pause_lane("key:k")
    assert ready_ids(in_flight) == ["x"]
    in_flight.add(delivery("c", "k"))
    assert ready_ids(in_flight) == []
    in_flight.resume_lane("key:k")
    in_flight.resume_lane("key:never-paused")
    assert ready_ids(in_flight) == ["a", "b", "c"]


def test_what_is_given_back_while_its_lane_is_paused_is_not_yielded_afterwards() -> None:
    a, b = delivery("a", "k"), delivery("b", "k")
    in_flight = filled(a, b)
    assert in_flight.take() is a
    in_flight.pause_lane("key:k")
    assert ready_ids(in_flight) == []
    in_flight.fail(a, 0.0, 1.0)
    in_flight.take_due(1.0)
    in_flight.resume_lane("key:k")
    assert ready_ids(in_flight) == []


def test_failures_are_counted_until_a_message_succeeds_and_only_so_many_are_remembered() -> None:
    failures = Failures(most=2)
    assert [failures.count("a"), failures.count("a"), failures.count("b")] == [1, 2, 1]
    failures.forget("b")
    assert failures.get("b") == 0
    failures.count("c")
    failures.count("d")
    assert [failures.get(one) for one in "acd"] == [0, 1, 1]


class HandMachine(RuleBasedStateMachine):
    """A model of Pub/Sub, which sends the messages of one ordering key in order.

    After a message was given back, the model sends this message and the later messages again.
    """

    @initialize()
    def begin(self) -> None:
        self.make_in_flight = make_in_flight(max_messages=1_000, max_bytes=100_000)
        self.now = 0.0
        self.sent = 0
        self.next_to_send = 0
        self.attempt = 0
        self.open: list[Delivery] = []
        self.done: set[int] = set()
        self.yielded: list[int] = []
        self.given_back_at: float | None = None
        """The time at which a message was given back; None: the service has sent it again, or none was given back."""

    @rule(count=st.integers(1, 4), repeats=st.booleans())
    def send(self, count: int, repeats: bool) -> None:
        self.attempt += 1
        self.given_back_at = None
        for number in range(self.next_to_send, self.next_to_send + count):
            if number not in self.done and (
                repeats or self.make_in_flight.find(str(number)) is None
            ):
                self.make_in_flight.add(delivery(str(number), "k", attempt=self.attempt))
        self.next_to_send += count

    @rule()
    def pull(self) -> None:
        one = self.make_in_flight.take()
        if one is not None:
            self.open.append(one)
            self.yielded.append(int(one.message_id))

    @rule(fails=st.booleans())
    def resolve(self, fails: bool) -> None:
        """Resolve the oldest open message. The runtime resolves messages in order, too."""
        if not self.open:
            return
        one = self.open.pop(0)
        if one.is_stale:
            return
        if fails:
            self.make_in_flight.fail(one, self.now, 1.0)
        else:
            self.make_in_flight.settle(one)
            self.done.add(int(one.message_id))
            self.make_in_flight.remove(one)

    @rule()
    def give_back(self) -> None:
        self.now += 1.0
        if self.given_back_at is not None and self.now >= self.given_back_at + COMES_AGAIN_WITHIN_S:
            # The service redelivers within this time.
            self.send(1, repeats=False)
        for one in self.make_in_flight.take_due(self.now):
            self.given_back_at = self.now
            self.next_to_send = min(self.next_to_send, int(one.message_id))

    @invariant()
    def what_is_done_is_a_prefix(self) -> None:
        assert self.done == set(range(len(self.done))), (
            "a message was processed before an older one"
        )

    @invariant()
    def a_message_is_yielded_only_when_all_before_it_were(self) -> None:
        seen = -1
        for number in self.yielded:
            assert number <= seen + 1
            seen = max(seen, number)


TestHandMachine = HandMachine.TestCase
