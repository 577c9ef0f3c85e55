"""Failures that other programs had with SQS. tests/rules/template.md lists them."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from tests.brokers.sqs.conftest import Queue, make_queue
from tests.brokers.sqs.driving import driving, eventually
from tests.services.brokers.sqs_proxy import Answer, Exchange
from triggerer.abc import AdvanceItem
from triggerer.testing.conformance.driver import ACKED, FAILED, Delivery
from triggerer.testing.conformance.resolutions import failing_once, gated, nothing, once


@pytest.mark.rule("a long poll that is cancelled at a stop takes a message with it")
async def test_what_an_open_poll_brings_at_a_stop_is_given_back(fifo: Queue) -> None:
    arrived = asyncio.Event()

    async def hold_back(exchange: Exchange) -> None:
        # SQS has handed the message out, and the answer with the message is on the way when the stream stops.
        if exchange.answer.get("Messages"):
            arrived.set()
            await asyncio.sleep(0.5)

    fifo.proxy.after = hold_back
    async with driving(fifo.producer(receive_wait_s=5)) as driver:
        await asyncio.to_thread(fifo.send, "a")
        await arrived.wait()
        assert driver.values == []
    assert await asyncio.to_thread(fifo.counts) == (1, 0), "it is invisible to others"
    fifo.proxy.after = None
    async with driving(fifo.producer()) as driver:
        await driver.advanced_count(1)


@pytest.mark.rule(
    "at a stop, messages are given back (visibility 0), and an open poll gets them again"
)
async def test_a_stream_that_stops_does_not_get_again_what_it_gives_back(queue: Queue) -> None:
    await asyncio.to_thread(queue.send, *(f"m{number}" for number in range(25)))
    async with driving(queue.producer(), nothing) as driver:
        await driver.count(25)
    actions = [exchange.action for exchange in queue.proxy.exchanges]
    last_poll = max(i for i, action in enumerate(actions) if action == "ReceiveMessage")
    assert set(actions[last_poll + 1 :]) == {"ChangeMessageVisibilityBatch"}
    assert await asyncio.to_thread(queue.counts) == (25, 0)


@pytest.mark.rule("renewal assumes a visibility timeout of 30 s, and not the queue's own")
async def test_renewal_follows_the_queues_own_timeout(brief: Queue) -> None:
    await asyncio.to_thread(brief.send, "a", "b")
    async with driving(brief.producer(), gated(gate := [False])) as driver:
        await driver.count(2)
        await driver.stay_quiet(3.0)
        assert driver.values == ["a", "b"] or driver.values == ["b", "a"], "redelivered"
        gate[0] = True
        await driver.advance()
    assert await asyncio.to_thread(brief.counts) == (0, 0)
    asked = {
        entry["VisibilityTimeout"]
        for exchange in brief.proxy.of("ChangeMessageVisibilityBatch")
        for entry in exchange.request["Entries"]
    }
    assert asked == {2}, "two periods of the queue's own timeout of one second"
    sizes = [len(one.request["Entries"]) for one in brief.proxy.of("ChangeMessageVisibilityBatch")]
    assert set(sizes) == {2}, "both in each request"


@pytest.mark.rule("a queue timeout of 5 s or less makes the renewal interval zero or negative")
@pytest.mark.parametrize("timeout_s", [0, 1, 5])
async def test_a_short_timeout_is_renewed_at_its_own_pace(
    queue: Queue, elasticmq: Any, timeout_s: int
) -> None:
    short = make_queue(elasticmq, queue.proxy, visibility_s=timeout_s)
    await asyncio.to_thread(short.send, "a")
    async with driving(short.producer(), nothing) as driver:
        await driver.count(1)
        await driver.stay_quiet(2.2)
        assert driver.values == ["a"]
    renewals = short.proxy.of("ChangeMessageVisibilityBatch")[:-1]
    # A renewal comes each half of the timeout, not in a loop without a pause.
    assert len(renewals) <= (5 if timeout_s == 1 else 1)


@pytest.mark.rule("a delete batch answers 200 with failed entries, and counts as a success")
async def test_an_entry_that_failed_is_deleted_before_the_advance_returns(queue: Queue) -> None:
    ids = await asyncio.to_thread(queue.send, "a", "b", "c")
    refused: list[str] = []

    async def swallow_one(exchange: Exchange) -> Answer | None:
        # Report all entries as failed. The service does not get the request, so it deletes nothing.
        if exchange.action == "DeleteMessageBatch" and not refused:
            entries = exchange.request["Entries"]
            refused.append(entries[-1]["Id"])
            return 200, {
                "Successful": [],
                "Failed": [
                    {"Id": entry["Id"], "Code": "InternalError", "SenderFault": False}
                    for entry in entries
                ],
            }
        return None

    queue.proxy.before = swallow_one
    async with driving(queue.producer()) as driver:
        await driver.advanced_count(3)
        assert refused, "nothing was refused"
        assert await asyncio.to_thread(queue.counts) == (0, 0), "an advance returned too early"
    assert queue.proxy.deleted() == set(ids)
    assert driver.values.count("a") == 1


@pytest.mark.rule(
    "a message is redelivered within one delete batch, which then has two entries with one id"
)
async def test_a_redelivered_message_is_deleted_once_with_its_newest_handle(brief: Queue) -> None:
    await asyncio.to_thread(brief.send, "a", "b")

    async def renew_nothing(exchange: Exchange) -> Answer | None:
        # Refuse renewals, so that the messages come again, as after a pause of the process.
        if exchange.action == "ChangeMessageVisibilityBatch":
            return 500, {"__type": "com.amazonaws.sqs#InternalError", "message": "not now"}
        return None

    brief.proxy.before = renew_nothing
    async with driving(brief.producer(), gated(gate := [False])) as driver:
        await driver.count(2)
        await eventually(lambda: _receives(brief) >= 2, "both come again")
        assert sorted(driver.values) == ["a", "b"], "a message in flight was delivered twice"
        gate[0] = True
        await driver.advance()
        assert await asyncio.to_thread(brief.counts) == (0, 0)
    for exchange in brief.proxy.of("DeleteMessageBatch"):
        entries = exchange.request["Entries"]
        assert len({entry["Id"] for entry in entries}) == len(entries)
        assert not exchange.answer.get("Failed")


def _receives(queue: Queue) -> int:
    """Return how often the less frequent of the two messages was received."""
    counts: dict[str, int] = {}
    for exchange in queue.proxy.of("ReceiveMessage"):
        for message in exchange.answer.get("Messages", ()):
            counts[message["MessageId"]] = counts.get(message["MessageId"], 0) + 1
    return min(counts.values(), default=0) if len(counts) == 2 else 0


@pytest.mark.rule("FIFO: a message fails; later ones of its group are held, other groups go on")
async def test_a_failed_message_holds_its_group_and_no_other(fifo: Queue) -> None:
    await asyncio.to_thread(fifo.send, "a0", "a1", "a2", group="a")
    await asyncio.to_thread(fifo.send, "b0", "b1", group="b")
    done: list[str] = []
    fail = failing_once("a0")

    def resolve(delivery: Delivery) -> Any:
        outcome = fail(delivery)
        if outcome is ACKED:
            done.append(delivery.value)
        return outcome

    async with driving(fifo.producer(), resolve) as driver:
        await driver.until(lambda: {"b0", "b1"} <= set(done), "the other group goes on")
        await driver.until(lambda: done[-1:] == ["a2"] and done.count("a0") == 1, "a goes on")
        assert await asyncio.to_thread(fifo.counts) == (0, 0)
    first = driver.values.index("a0")
    again = driver.values.index("a0", first + 1)
    of_group = [value for value in driver.values[again:] if value.startswith("a")]
    assert of_group == ["a0", "a1", "a2"], "after the failure, in order"
    deleted = [
        message
        for exchange in fifo.proxy.of("DeleteMessageBatch")
        for message in exchange.request["Entries"]
    ]
    assert len(deleted) == 5, "a later message was deleted before a0, and again after it"


@pytest.mark.rule("in-flight entries are compared by value; one that changed is never removed")
async def test_what_comes_again_with_another_count_is_renewed_and_removed(brief: Queue) -> None:
    """Two messages have equal bodies. One of them fails, and comes again with a higher delivery count."""
    await asyncio.to_thread(brief.send, "a", "a")
    seen = 0

    def fail_first(_: Delivery) -> Any:
        nonlocal seen
        seen += 1
        return FAILED if seen == 1 else ACKED

    async with driving(brief.producer(), fail_first) as driver:
        await driver.advanced_count(3)
        assert await asyncio.to_thread(brief.counts) == (0, 0)
        before = len(brief.proxy.of("ChangeMessageVisibilityBatch"))
        await driver.stay_quiet(1.5)
        assert len(brief.proxy.of("ChangeMessageVisibilityBatch")) == before, (
            "what is gone is renewed"
        )


async def test_a_message_whose_delete_failed_is_deleted_and_not_given_when_it_returns(
    brief: Queue,
) -> None:
    (identity,) = await asyncio.to_thread(brief.send, "a")

    async def refuse(exchange: Exchange) -> Answer | None:
        if exchange.action == "DeleteMessageBatch" and len(brief.proxy.of(exchange.action)) == 1:
            failed = {"Id": "0", "Code": "ReceiptHandleIsInvalid", "SenderFault": True}
            return 200, {"Successful": [], "Failed": [failed]}
        return None

    brief.proxy.before = refuse
    async with driving(brief.producer()) as driver:
        await driver.advanced_count(1)
        await eventually(lambda: identity in brief.proxy.deleted(), "it is deleted")
        assert driver.values == ["a"]
    assert await asyncio.to_thread(brief.counts) == (0, 0)


async def test_nothing_that_was_given_back_is_renewed(brief: Queue) -> None:
    await asyncio.to_thread(brief.send, "a")
    settings = {"redelivery_delay_s": 60, "redelivery_delay_max_s": 60, "max_deliveries": 0}
    async with driving(brief.producer(**settings), once("a", FAILED)) as driver:
        await driver.until(lambda: len(driver.advanced) == 1, "it has failed")
        asked = len(brief.proxy.of("ChangeMessageVisibilityBatch"))
        await driver.stay_quiet(1.5)
        assert len(brief.proxy.of("ChangeMessageVisibilityBatch")) == asked


async def test_a_message_of_a_standard_queue_holds_up_no_other(queue: Queue) -> None:
    await asyncio.to_thread(queue.send, *(f"m{number}" for number in range(30)))
    stuck = {"m0", "m7"}
    async with driving(
        queue.producer(), lambda one: None if one.value in stuck else ACKED
    ) as driver:
        await driver.advanced_count(28)
        assert await asyncio.to_thread(queue.counts) == (0, 2)


async def test_messages_that_are_done_together_are_deleted_in_tens_and_one_that_failed_comes_again(
    queue: Queue,
) -> None:
    await asyncio.to_thread(queue.send, *(f"m{number:02}" for number in range(30)))
    async with driving(queue.producer(), nothing) as driver:
        await driver.count(30)
        by_value = {one.value: one.payload for one in driver.deliveries}
        outcomes = {"m07": FAILED}
        await driver.producer.advance_lanes(
            [
                [AdvanceItem(payload, outcomes.get(value, ACKED))]
                for value, payload in by_value.items()
            ]
        )
        deletes = queue.proxy.of("DeleteMessageBatch")
        assert sorted(len(one.request["Entries"]) for one in deletes) == [9, 10, 10]
        await driver.until(lambda: driver.values.count("m07") == 2, "it comes again")
        assert len(driver.values) == 31
    assert len(queue.proxy.deleted()) == 29


@pytest.mark.rule(
    "one delete of many that go together is slow or fails; the lanes of the others go on"
)
async def test_a_slow_delete_holds_up_no_lane_of_the_same_call(queue: Queue) -> None:
    await asyncio.to_thread(queue.send, *(f"m{number:02}" for number in range(40)))
    goes_on = anyio.Event()
    seen: list[Exchange] = []

    async def before(exchange: Exchange) -> Answer | None:
        if exchange.action != "DeleteMessageBatch":
            return None
        seen.append(exchange)
        if len(seen) == 1:
            await goes_on.wait()
        return None

    async def after(exchange: Exchange) -> None:
        if exchange.action == "DeleteMessageBatch" and exchange is not seen[0]:
            done = exchange.answer["Successful"]
            if not goes_on.is_set() and done:
                failed = done.pop() | {"Code": "InternalError", "SenderFault": False}
                exchange.answer["Failed"] = [failed]

    queue.proxy.before, queue.proxy.after = before, after
    reported: list[int] = []
    async with driving(queue.producer(), nothing) as driver:
        await driver.count(40)
        batches = [[AdvanceItem(one.payload, ACKED)] for one in driver.deliveries]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.producer.advance_lanes, batches, reported.extend)
            await eventually(lambda: len(reported) >= 27, "the others are reported")
            # Nine of ten entries of each other request succeed. The tenth fails until `goes_on` is set.
            assert len(set(reported)) == len(reported) == 27
            goes_on.set()
        # The other lanes have advanced when the call returns. No lane is reported twice.
        assert len(set(reported)) == len(reported) <= 40
    assert await asyncio.to_thread(queue.counts) == (0, 0)


async def test_nothing_to_advance_is_advanced_at_once(queue: Queue) -> None:
    async with driving(queue.producer(), nothing) as driver:
        with anyio.fail_after(5):
            await driver.producer.advance_lanes([])
