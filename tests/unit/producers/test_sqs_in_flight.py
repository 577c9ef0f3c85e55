"""Messages in flight of a queue: their renewals, their order and their end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from producers.sqs.in_flight import InFlight
from producers.sqs.message import Delivery, State
from producers.sqs.queue import Queue, describe, name_of
from triggerer.pluginkit.dumping import dump_message, load_message

STANDARD = Queue("http://q/orders", "orders", False, 30, None)
FIFO = Queue("http://q/orders.fifo", "orders.fifo", True, 30, None)


def raw(identity: str, *, group: str | None = None, deliveries: int = 1) -> dict[str, Any]:
    system = {"ApproximateReceiveCount": str(deliveries), "SentTimestamp": "1700000000123"}
    if group is not None:
        system |= {"MessageGroupId": group, "SequenceNumber": "7"}
    return {
        "MessageId": identity,
        "ReceiptHandle": f"{identity}/{deliveries}",
        "Body": "{}",
        "Attributes": system,
    }


def in_flight(queue: Queue = STANDARD) -> InFlight:
    return InFlight(queue, on_removed=lambda: None)


def take(delivery: InFlight, *raws: dict[str, Any], now: float = 0.0) -> list[Delivery]:
    return delivery.take(raws, now)[0]


def test_a_message_that_comes_again_while_it_is_held_is_the_same_with_a_newer_handle() -> None:
    messages = in_flight()
    (first,) = take(messages, raw("a"))
    assert take(messages, raw("a", deliveries=2), now=61.0) == []
    assert (first.handle, first.deliveries, len(messages)) == ("a/2", 2, 1)
    assert first.expires_at == 61.0 + 60.0


def test_one_that_was_given_back_is_another_when_it_comes_again() -> None:
    messages = in_flight()
    (first,) = take(messages, raw("a"))
    messages.remove(first)
    (again,) = take(messages, raw("a", deliveries=2))
    assert again is not first
    assert first.state is State.GONE
    messages.remove(first)
    assert messages.has(again), "what is told of the first does not touch the second"


def test_one_that_is_done_is_only_to_be_deleted_when_it_comes_again() -> None:
    messages = in_flight()
    (first,) = take(messages, raw("a"))
    messages.mark_done(first)
    new, done = messages.take([raw("a", deliveries=2), raw("b")], 5.0)
    assert ([one.id for one in new], [one.id for one in done]) == (["b"], ["a"])
    messages.forget_done(done[0])
    messages.remove(done[0])
    assert [one.id for one in take(messages, raw("a", deliveries=3))] == ["a"]


def test_a_group_is_a_lane_and_a_message_without_one_is_a_lane_of_its_own() -> None:
    assert [one.lane for one in take(in_flight(FIFO), raw("a", group="g"))] == ["g"]
    assert [one.lane for one in take(in_flight(), raw("a"), raw("b"))] == ["a", "b"]
    # A standard queue takes groups too, for fairness among them; it keeps no order in them.
    assert [one.lane for one in take(in_flight(), raw("a", group="g"))] == ["a"]


def test_behind_a_message_is_what_came_after_it_in_its_group() -> None:
    messages = in_flight(FIFO)
    a0, b0, a1, a2 = take(
        messages, *(raw(name, group=name[0]) for name in ("a0", "b0", "a1", "a2"))
    )
    assert list(messages.behind(a0)) == [a1, a2]
    assert list(messages.behind(b0)) == []
    messages.remove(a1)
    assert list(messages.behind(a0)) == [a2]


def test_messages_are_renewed_at_half_a_period_and_kept_for_two() -> None:
    messages = in_flight()
    (delivery,) = take(messages, raw("a"), now=100.0)
    assert delivery.expires_at == 160.0
    assert messages.next_due() == 115.0
    assert messages.due(114.0) == []
    assert messages.due(115.0) == [delivery]
    messages.mark_renewed(delivery, 115.0, messages.extension(delivery, 115.0))
    assert (delivery.expires_at, messages.next_due()) == (175.0, 130.0)


def test_what_is_due_soon_is_renewed_with_what_is_due_now() -> None:
    messages = in_flight()
    take(messages, raw("a"), now=0.0)
    take(messages, raw("b"), now=3.0)
    take(messages, raw("c"), now=12.0)
    assert [one.id for one in messages.due(15.0)] == ["a", "b"]


def test_what_is_lost_is_not_renewed_until_it_comes_again() -> None:
    messages = in_flight()
    (delivery,) = take(messages, raw("a"))
    messages.mark_lost(delivery)
    assert messages.next_due() == float("inf")
    take(messages, raw("a", deliveries=2), now=70.0)
    assert messages.next_due() == 85.0
    assert not delivery.is_lost


def test_nothing_is_kept_beyond_the_twelve_hours_that_the_service_allows() -> None:
    messages = in_flight()
    (delivery,) = take(messages, raw("a"))
    assert messages.extension(delivery, 3600.0) == 60
    assert messages.extension(delivery, 12 * 3600 - 31.0) == 30
    assert messages.extension(delivery, 12 * 3600.0) == 0


def test_deliveries_that_were_no_failure_are_taken_off_the_count() -> None:
    messages = in_flight()
    (delivery,) = take(messages, raw("a", deliveries=4))
    assert messages.failures(delivery) == 4
    messages.exclude_from_failures(delivery)
    messages.exclude_from_failures(delivery)
    assert messages.failures(delivery) == 2


def test_a_delivery_while_the_message_is_in_flight_is_no_failure() -> None:
    """A process that was paused for longer than the visibility timeout receives its messages again."""
    messages = in_flight()
    (delivery,) = take(messages, raw("a"))
    for count in (2, 3):
        take(messages, raw("a", deliveries=count), now=100.0 * count)
    assert messages.failures(delivery) == 1
    messages.remove(delivery)
    (again,) = take(messages, raw("a", deliveries=4))
    assert messages.failures(again) == 2


def test_what_is_remembered_is_bounded() -> None:
    messages = in_flight()
    for number in range(10_050):
        (delivery,) = take(messages, raw(f"m{number}"))
        messages.mark_done(delivery)
    assert len(messages) == 0
    new, done = messages.take([raw("m0"), raw("m10049")], 0.0)
    assert ([one.id for one in new], [one.id for one in done]) == (["m0"], ["m10049"])


def test_a_message_can_be_kept_as_bytes() -> None:
    message = take(in_flight(FIFO), raw("a", group="g"))[0].message
    assert load_message(dump_message(message)) == message
    assert message.key == b"g"


# Queues


def test_a_queue_is_described_by_its_attributes() -> None:
    policy = {"deadLetterTargetArn": "arn:aws:sqs:eu-west-1:123:dead", "maxReceiveCount": "5"}
    attributes = {"VisibilityTimeout": "7", "RedrivePolicy": json.dumps(policy)}
    found = describe("https://sqs.eu-west-1.amazonaws.com/123/orders", attributes, None)
    assert (found.name, found.is_fifo, found.visibility_s, found.lease_s) == (
        "orders",
        False,
        7,
        14,
    )
    assert found.redrive is not None
    assert (found.redrive.name, found.redrive.account, found.redrive.max_receive_count) == (
        "dead",
        "123",
        5,
    )


@pytest.mark.parametrize(
    ("own", "stated", "lease_s"), [("0", None, 60), ("30", 5, 10), ("43200", None, 43_200)]
)
def test_the_lease_is_two_periods_within_what_the_service_allows(
    own: str, stated: int | None, lease_s: int
) -> None:
    assert describe("http://q/a", {"VisibilityTimeout": own}, stated).lease_s == lease_s


def test_a_redrive_policy_that_cannot_be_read_is_none(caplog: pytest.LogCaptureFixture) -> None:
    assert describe("http://q/a", {"RedrivePolicy": "{}"}, None).redrive is None
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("queue", ["orders", "https://sqs.eu-west-1.amazonaws.com/123/orders"])
def test_a_queue_has_one_name_however_it_is_given(queue: str) -> None:
    assert name_of(queue) == "orders"
