"""`Leases` of Pub/Sub: which leases are due for an extension, and when."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from producers.pubsub.leases import Leases, LeaseTimes
from producers.pubsub.requests import MOST_BYTES, MOST_IDS, split


def leases(**settings: object) -> Leases:
    defaults: dict[str, object] = {
        "fixed_deadline_s": 60,
        "min_deadline_s": 10,
        "max_extension_s": 3_600.0,
        "random": Random(1),
    }
    return Leases(**(defaults | settings))  # type: ignore[arg-type]


def test_nothing_is_due_while_nothing_is_leased() -> None:
    empty = leases()
    assert empty.next_at() is None
    assert empty.take_due(1e9).extend == []


def test_a_lease_is_extended_around_its_half() -> None:
    leased = leases()
    leased.begin(["a"], 100.0, 60)
    at = leased.next_at()
    assert at is not None
    assert 124.0 <= at <= 136.0
    assert leased.take_due(at - 4.0).extend == []
    assert list(leased.take_due(at).extend) == ["a"]


def test_leases_that_began_together_are_not_extended_at_one_moment_nor_one_by_one() -> None:
    leased = leases()
    leased.begin([f"m{number}" for number in range(1_000)], 0.0, 60)
    now, requests = 0.0, []
    while sum(requests) < 1_000:
        at = leased.next_at()
        assert at is not None
        assert at < 40.0
        now = max(now, at)
        requests.append(len(leased.take_due(now).extend))
    assert 2 <= len(requests) <= 10


def test_what_was_extended_is_extended_again_from_when_it_was_asked_for() -> None:
    leased = leases()
    leased.begin(["a"], 0.0, 60)
    assert list(leased.take_due(40.0).extend) == ["a"]
    leased.extended(["a"], 40.0, 60)
    at = leased.next_at()
    assert at is not None
    assert 64.0 <= at <= 76.0
    assert leased.release(["a"], 50.0) == [100.0]


def test_what_could_not_be_extended_is_tried_again_before_the_lease_is_over() -> None:
    leased = leases()
    leased.begin(["a"], 0.0, 60)
    leased.take_due(36.0)
    leased.put_off(["a"], 40.0)
    assert leased.next_at() == 40.0
    assert list(leased.take_due(40.0).extend) == ["a"]


def test_what_nobody_reported_on_is_tried_again() -> None:
    leased = leases()
    leased.begin(["a"], 0.0, 60)
    assert list(leased.take_due(36.0).extend) == ["a"]
    assert leased.take_due(37.0).extend == []
    assert list(leased.take_due(80.0).extend) == ["a"]


@pytest.mark.rule(
    "exactly-once: an ack is refused for good after the events are durable; its id goes on being renewed"
)
def test_an_id_that_was_released_is_extended_no_more_even_if_a_late_answer_names_it() -> None:
    leased = leases()
    leased.begin(["a", "b"], 0.0, 60)
    assert sorted(leased.take_due(36.0).extend) == ["a", "b"]
    leased.release(["a"], 36.5)
    leased.extended(["a", "b"], 36.0, 60)
    leased.put_off(["a"], 37.0)
    assert list(leased.take_due(75.0).extend) == ["b"]
    assert "a" not in leased


@pytest.mark.rule(
    "a lease passes its maximum while a watcher works; the late ack meets a key that was dropped"
)
def test_a_lease_is_given_up_at_its_maximum() -> None:
    leased = leases(max_extension_s=100.0)
    leased.begin(["a"], 0.0, 60)
    for now in (36.0, 72.0):
        assert list(leased.take_due(now).extend) == ["a"]
        leased.extended(["a"], now, 60)
    due = leased.take_due(110.0)
    assert (list(due.extend), list(due.given_up)) == ([], ["a"])
    assert leased.next_at() is None


def test_a_lease_that_the_service_took_back_is_extended_no_more() -> None:
    leased = leases()
    leased.begin(["a"], 0.0, 60)
    leased.lose(["a"])
    assert leased.next_at() is None
    assert leased.release(["a"], 7.0) == [7.0]


def test_the_deadline_follows_how_long_messages_are_held() -> None:
    leased = leases(fixed_deadline_s=None, min_deadline_s=20)
    assert leased.deadline_s == 20
    leased.begin([f"m{number}" for number in range(100)], 0.0, 20)
    leased.release([f"m{number}" for number in range(98)], 1.0)
    assert leased.deadline_s == 20
    leased.release(["m98", "m99"], 90.0)
    assert leased.deadline_s == 91
    leased.begin([f"n{number}" for number in range(50)], 0.0, 20)
    leased.release([f"n{number}" for number in range(50)], 10_000.0)
    assert leased.deadline_s == 600


def test_old_hold_times_count_less() -> None:
    times = LeaseTimes()
    for _ in range(200):
        times.add(500.0)
    for _ in range(60_000):
        times.add(2.0)
    assert times.percentile_99() == 3


class LeaseMachine(RuleBasedStateMachine):
    """A lease whose extensions come in time ends in three cases only: it is released, is lost, or reaches
    `max_extension_s`."""

    @initialize(deadline_s=st.integers(10, 600))
    def begin_all(self, deadline_s: int) -> None:
        self.deadline_s = deadline_s
        self.leases = leases(
            fixed_deadline_s=deadline_s, max_extension_s=5.0 * deadline_s, random=Random(0)
        )
        self.now = 0.0
        self.number = 0
        self.until: dict[str, float] = {}
        self.received: dict[str, float] = {}

    @rule(count=st.integers(1, 5))
    def receive(self, count: int) -> None:
        ids = [f"m{self.number + offset}" for offset in range(count)]
        self.number += count
        self.leases.begin(ids, self.now, self.deadline_s)
        self.until |= dict.fromkeys(ids, self.now + self.deadline_s)
        self.received |= dict.fromkeys(ids, self.now)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.until:
            ack_id = data.draw(st.sampled_from(sorted(self.until)))
            self.leases.release([ack_id], self.now)
            del self.until[ack_id]

    @rule(part=st.floats(0.0, 1.0), fails=st.booleans())
    def work(self, part: float, fails: bool) -> None:
        """Let time pass, and extend or end each lease when it is due. If `fails` is true, one extension fails."""
        end = self.now + part * self.deadline_s
        while (at := self.leases.next_at()) is not None and at <= end:
            self.now = max(self.now, at)
            due = self.leases.take_due(self.now)
            for ack_id in due.given_up:
                assert self.now - self.received[ack_id] >= 5 * self.deadline_s
                del self.until[ack_id]
            if fails and due.extend:
                self.leases.put_off(due.extend, self.now + self.deadline_s / 16)
                fails = False
            else:
                self.leases.extended(due.extend, self.now, self.deadline_s)
                self.until |= dict.fromkeys(due.extend, self.now + self.deadline_s)
        self.now = end

    @invariant()
    def nothing_that_is_held_is_over(self) -> None:
        assert all(until > self.now for until in self.until.values())
        assert len(self.leases) == len(self.until)


TestLeaseMachine = LeaseMachine.TestCase


@given(st.lists(st.integers(1, 3_000), max_size=300))
def test_requests_are_split_below_both_limits_and_nothing_is_left_out(sizes: list[int]) -> None:
    ids = [f"{number}".ljust(size, "x") for number, size in enumerate(sizes)]
    parts = list(split(ids))
    assert [one for part in parts for one in part] == ids
    for part in parts:
        assert 1 <= len(part) <= MOST_IDS
        assert len(part) == 1 or sum(len(one) + 4 for one in part) <= MOST_BYTES


def test_ten_thousand_ids_of_the_services_length_are_five_requests() -> None:
    parts = list(split(["x" * 176] * 10_000))
    assert [len(part) for part in parts] == [2_500] * 4 or len(parts) == 5
