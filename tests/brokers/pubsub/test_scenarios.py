"""Bugs that other programs had with Pub/Sub. Issue 16 lists them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import anyio
import grpc
import pytest

from tests.brokers.pubsub.driving import TIMEOUT_S, driven, producer_on
from tests.services.brokers.pubsub_double import PERMANENT, Entry, PubSubDouble
from tests.services.tcp_proxy import open_tcp_proxy
from triggerer.abc import AdvanceOutcome
from triggerer.errors import BrokerUnavailable
from triggerer.testing.conformance.driver import ACKED, FAILED, Delivery
from triggerer.testing.conformance.resolutions import acked, all_but, failing, gated, nothing


async def eventually(condition: object, what: str) -> None:
    """Check the condition again and again, because the server does not announce changes."""
    assert callable(condition)
    with anyio.move_on_after(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)
        return
    raise AssertionError(f"not within {TIMEOUT_S:g} s: {what}")


@pytest.mark.rule(
    "a message that is handed out while the pull is cancelled is stuck until its ack deadline"
)
async def test_nothing_stays_leased_after_a_stop_whatever_was_on_its_way(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    for at_once in (1, 150, 400):
        double.publish(name, [f"{at_once}-{number}" for number in range(400)])
        async with driven(producer_on(double.host, name, ack_deadline_s=600), nothing) as driver:
            await driver.count(at_once)
        assert double.leased(name) == []


@pytest.mark.rule(
    "a cancelled pull still yields messages; acks are noted as done before they are sent"
)
async def test_an_ack_that_the_service_has_not_answered_is_not_done(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a", "b"])
    with double.stalled("Acknowledge"):
        async with driven(producer_on(double.host, name)) as driver:
            await driver.count(2)
            await eventually(lambda: double.counts["Acknowledge"], "an ack is under way")
            await driver.stay_quiet(0.2)
            assert driver.advanced == []
        assert double.leased(name) == []
    async with driven(producer_on(double.host, name)) as driver:
        await driver.advanced_count(2)
        assert sorted(driver.values) == ["a", "b"]


@pytest.mark.rule(
    "acks fail for long: pending ids grow without bound, then exceed the request limit"
)
async def test_acks_that_fail_for_long_stay_bounded_and_are_dropped_with_their_leases(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, [f"m{number}" for number in range(300)])
    double.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE)
    producer = producer_on(double.host, name, ack_deadline_s=1, max_outstanding_messages=40)
    async with driven(producer) as driver:
        # The server accepts no acks, so each message stays outstanding until its lease expires, after one second. Then
        # the producer drops the message's ack and may receive another message.
        await driver.advanced_count(60)
        sent = [request for request in double.requests if request.method == "Acknowledge"]
        # A request may contain two ack ids of one message, if the message was redelivered.
        assert max(len(request.ack_ids) for request in sent) <= 2 * 40
        assert len(driver.values) - len(driver.advanced) <= 40
        double.accept("Acknowledge")
        await eventually(lambda: all(one.is_acked for one in double.entries(name)), "all are acked")
    keys = {delivery.value: delivery.key for delivery in driver.deliveries}
    assert all(delivery.key == keys[delivery.value] for delivery in driver.deliveries)


async def test_acks_that_are_not_taken_end_the_stream_loudly(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    double.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(
        BrokerUnavailable, match=r"acknowledging 1 messages.*none was accepted within"
    ):
        async with driven(producer_on(double.host, name, ack_timeout_s=0.5)) as driver:
            await driver.advanced_count(1)


@pytest.mark.parametrize("exactly_once", [False, True])
@pytest.mark.rule(
    "a lease passes its maximum while a watcher works; the late ack meets a key that was dropped"
)
async def test_a_lease_that_passes_its_maximum_holds_up_its_key_no_longer_than_its_watcher(
    double: PubSubDouble, name: str, exactly_once: bool
) -> None:
    double.create(name, enable_message_ordering=True, enable_exactly_once_delivery=exactly_once)
    double.publish(name, ["a", "b", "c"], key="k")
    gate = [False]
    producer = producer_on(double.host, name, ack_deadline_s=1, max_extension_s=1)
    async with driven(producer, gated(gate)) as driver:
        await driver.count(3)
        await eventually(
            lambda: double.entries(name)[0].attempts > 1, "the service delivers a again"
        )
        gate[0] = True
        await driver.advance()
        await eventually(lambda: all(one.is_acked for one in double.entries(name)), "all are acked")
        double.publish(name, ["d"], key="k")
        await driver.until(lambda: "d" in acked(driver), "the key goes on")
    first = list(dict.fromkeys(driver.values))
    assert first == ["a", "b", "c", "d"]


@pytest.mark.rule(
    "exactly-once: an ack is refused for good after the events are durable; its id goes on being renewed"
)
async def test_an_ack_that_is_refused_for_good_is_given_up_and_the_message_comes_again(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, enable_exactly_once_delivery=True)
    double.publish(name, ["a", "b"])
    refused: list[str] = []

    def decide(method: str, entry: Entry) -> str | None:
        if method == "Acknowledge" and entry.value == "a" and not refused:
            refused.append(entry.ack_id)
            return PERMANENT
        return None

    double.fail_ids(decide)
    async with driven(producer_on(double.host, name, ack_deadline_s=1)) as driver:
        await driver.advanced_count(2)
        await driver.until(lambda: driver.values.count("a") == 2, "a comes again")
        await eventually(lambda: all(one.is_acked for one in double.entries(name)), "all are acked")
    keys = [delivery.key for delivery in driver.deliveries if delivery.value == "a"]
    assert keys[0] == keys[1]
    named = Counter(one for request in double.requests for one in request.ack_ids)
    assert named[refused[0]] == 1, "acknowledged once, and neither extended nor given back"


@pytest.mark.parametrize("how", ["refused for good", "over before they are taken"])
@pytest.mark.rule(
    "exactly-once: an ack is refused for good after the events are durable; its id goes on being renewed"
)
async def test_acks_of_which_none_is_taken_although_all_comes_again_end_the_stream_loudly(
    double: PubSubDouble, name: str, how: str
) -> None:
    double.create(name, enable_exactly_once_delivery=True)
    if how == "refused for good":
        double.fail_ids(lambda method, _: PERMANENT if method == "Acknowledge" else None)
        says = "PERMANENT_FAILURE_INVALID_ACK_ID"
    else:
        double.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE)
        says = "UNAVAILABLE"
    double.publish(name, ["a", "b"])
    producer = producer_on(double.host, name, ack_deadline_s=1, ack_timeout_s=2.5)
    with pytest.raises(
        BrokerUnavailable, match=rf"none was accepted within 2 s: .*{says}"
    ) as raised:
        async with driven(producer) as driver:
            await driver.count(100)
    assert "ack_deadline_s" in str(raised.value)


@pytest.mark.rule("messages of one key that wait for a slow watcher escape flow control")
async def test_the_messages_of_a_key_whose_watcher_is_slow_count_for_flow_control(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, enable_message_ordering=True)
    double.publish(name, [f"m{number}" for number in range(500)], key="k")
    producer = producer_on(double.host, name, max_outstanding_messages=10)
    async with driven(producer, nothing) as driver:
        await driver.count(10)
        await driver.stay_quiet(0.3)
        assert len(driver.values) == 10
        assert len(double.leased(name)) == 10


async def test_a_bound_in_bytes_holds_where_the_server_does_not_keep_it(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["x" * 1_000] * 2_000)
    producer = producer_on(double.host, name, max_outstanding_bytes=50_000)
    async with driven(producer, nothing) as driver:
        await driver.count(50)
        await driver.stay_quiet(0.3)
        assert len(driver.values) <= 150, "more than the bound and one batch of the server"


@pytest.mark.rule(
    "with ordering, exactly-once and dead letters together, a key is never delivered again"
)
async def test_a_key_goes_on_after_its_message_was_dead_lettered_by_the_service(
    double: PubSubDouble, name: str
) -> None:
    double.create(f"{name}-dead")
    double.create(
        name,
        enable_message_ordering=True,
        enable_exactly_once_delivery=True,
        dead_letter_policy={
            "dead_letter_topic": f"projects/tests/topics/{name}-dead",
            "max_delivery_attempts": 5,
        },
    )
    double.publish(name, ["poison", "b", "c"], key="k")
    async with driven(producer_on(double.host, name), failing("poison")) as driver:
        await eventually(
            lambda: all(one.is_acked for one in double.entries(name)), "the key goes on"
        )
        assert [one.value for one in double.entries(f"{name}-dead")] == ["poison"]
    assert driver.values.count("poison") == 5
    assert [event.deliveries for event in driver.events[:1]] == [1]
    assert driver.values[-2:] == ["b", "c"]


@pytest.mark.rule(
    "the network is away for a minute: the stream neither resumes nor raises, or reconnects without a pause"
)
async def test_a_stream_that_cannot_be_opened_is_tried_again_at_growing_delays_and_resumes(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    async with driven(producer_on(double.host, name)) as driver:
        await driver.advanced_count(1)
        double.refuse("StreamingPull", grpc.StatusCode.UNAVAILABLE)
        assert double.break_streams() == 1
        await driver.stay_quiet(3.0)
        assert 2 <= double.counts["StreamingPull"] <= 20
        double.accept("StreamingPull")
        double.publish(name, ["b"])
        await driver.advanced_count(2)


async def test_messages_in_hand_stay_in_hand_while_the_connection_is_reset(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a", "b"])
    with open_tcp_proxy(double.port) as proxy:
        producer = producer_on(f"127.0.0.1:{proxy.port}", name, keepalive_s=1)
        async with driven(producer, gated(gate := [False])) as driver:
            await driver.count(2)
            await asyncio.to_thread(proxy.refuse)
            await driver.stay_quiet(1.0)
            gate[0] = True
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(driver.advance)
                await driver.stay_quiet(0.5)
                assert driver.advanced == []
                await asyncio.to_thread(proxy.heal)
            await driver.advanced_count(2)
            double.publish(name, ["c"])
            await driver.advanced_count(3)
        assert [one.attempts for one in double.entries(name)] == [1, 1, 1]


@pytest.mark.rule(
    "the network is away for a minute: the stream neither resumes nor raises, or reconnects without a pause"
)
@pytest.mark.soak
async def test_a_network_that_is_silent_for_a_minute_is_noticed_and_survived(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    with open_tcp_proxy(double.port) as proxy:
        producer = producer_on(f"127.0.0.1:{proxy.port}", name, keepalive_s=5)
        async with driven(producer) as driver:
            await driver.advanced_count(1)
            await asyncio.to_thread(proxy.silence)
            double.publish(name, ["b"])
            await driver.stay_quiet(60.0)
            await asyncio.to_thread(proxy.heal)
            await driver.advanced_count(2)


@pytest.mark.soak
async def test_a_stop_is_not_held_up_by_a_network_that_is_silent(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    with open_tcp_proxy(double.port) as proxy:
        producer = producer_on(f"127.0.0.1:{proxy.port}", name, ack_deadline_s=60)
        async with driven(producer, nothing) as driver:
            await driver.count(1)
            await asyncio.to_thread(proxy.silence)
            began = time.monotonic()
        assert time.monotonic() - began < 15.0
        await asyncio.to_thread(proxy.heal)


@pytest.mark.rule(
    "poison messages that are nacked at once fill all slots, and nothing else gets through"
)
async def test_as_many_poison_messages_as_slots_keep_nobody_out(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, [f"poison{number}" for number in range(20)])
    good = {f"good{number}" for number in range(20)}
    double.publish(name, sorted(good))

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        return FAILED if delivery.value.startswith("poison") else ACKED

    producer = producer_on(
        double.host,
        name,
        max_outstanding_messages=20,
        redelivery_delay_s=60.0,
        redelivery_delay_max_s=60.0,
    )
    async with driven(producer, resolve) as driver:
        await driver.until(lambda: good <= acked(driver), "the others get through")
        assert len(double.leased(name)) <= 20


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_the_watchers_have_not_looked_at_is_given_again_and_spends_no_delivery(
    double: PubSubDouble, name: str, ordered: bool
) -> None:
    """A message fails unread if the watcher stopped at another message before it.

    The producer repeats such a message from memory, so Pub/Sub counts no further delivery.
    """
    double.create(name, enable_message_ordering=ordered)
    values = [f"m{number}" for number in range(9)]
    double.publish(name, values, key="k" if ordered else "")
    left = {"m0": 3, "m4": 1}

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        if left.get(delivery.value, 0):
            left[delivery.value] -= 1
            return AdvanceOutcome(acked=0, failed=1, rejected=0, unread=1)
        return ACKED

    async with driven(producer_on(double.host, name, max_deliveries=1), resolve) as driver:
        await driver.until(lambda: set(values) == acked(driver), "all are taken")
        entries = double.entries(name)
        await eventually(lambda: all(one.is_acked for one in entries), "all are acknowledged")
        assert {(one.attempts, one.failures) for one in entries} == {(1, 0)}
        assert driver.values.count("m0") == 4
        done = [one.value for one, outcome in driver.advanced if outcome is ACKED]
        # The later messages of m4's key were processed but not acknowledged, so they came again.
        assert not ordered or done[-5:] == values[4:]


@pytest.mark.rule("the task that renews locks starves while a filter computes")
@pytest.mark.parametrize("computes", [False, True])
async def test_leases_outlast_a_filter_that_blocks_the_event_loop_for_more_than_one_period(
    double: PubSubDouble, name: str, computes: bool
) -> None:
    double.create(name)
    double.publish(name, [f"m{number}" for number in range(50)])
    async with driven(producer_on(double.host, name, ack_deadline_s=1), nothing) as driver:
        await driver.count(50)
        end = time.monotonic() + 2.5
        if computes:
            while time.monotonic() < end:
                sum(range(1_000))
        else:
            time.sleep(2.5)
        assert len(double.leased(name)) == 50
    assert [one.attempts for one in double.entries(name)] == [1] * 50


async def test_a_filter_that_needs_three_periods_keeps_its_message(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["slow", "quick"])
    gate = [False]

    def resolve(delivery: Delivery) -> AdvanceOutcome | None:
        return ACKED if delivery.value == "quick" or gate[0] else None

    async with driven(producer_on(double.host, name, ack_deadline_s=1), resolve) as driver:
        await driver.advanced_count(1)
        await driver.stay_quiet(3.2)
        gate[0] = True
        await driver.advance()
    assert [(one.value, one.attempts, one.is_acked) for one in double.entries(name)] == [
        ("slow", 1, True),
        ("quick", 1, True),
    ]


async def test_a_held_key_holds_up_no_other(double: PubSubDouble, name: str) -> None:
    double.create(name, enable_message_ordering=True)
    double.publish(name, ["stuck", "behind"], key="k")
    double.publish(name, ["b0", "b1"], key="other")
    double.publish(name, ["c0"])
    async with driven(producer_on(double.host, name), all_but("stuck")) as driver:
        await driver.until(lambda: {"b0", "b1", "c0"} <= acked(driver), "the others go on")
        assert "behind" not in acked(driver)
