"""Rejected messages, and messages that fail too often, go to the dead-letter queue or stay in their queue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from producers.sqs.checking import check_queue
from producers.sqs.settings import SqsSettings
from tests.brokers.sqs.conftest import Queue
from tests.brokers.sqs.driving import driving, eventually, producer_on
from tests.services.brokers.elasticmq import ElasticMqServer
from tests.services.brokers.sqs_proxy import Answer, Exchange, refusal
from triggerer import abc
from triggerer.errors import BrokerRefused
from triggerer.testing import StreamHarness
from triggerer.testing.conformance.driver import ACKED, FAILED, REJECTED
from triggerer.testing.conformance.resolutions import acked, failing, once
from watchers.sqs import SqsEventTrigger

PREFIX = "triggerer.dead-letter."


def _texts(message: dict[str, Any]) -> dict[str, str]:
    return {
        name: value["StringValue"]
        for name, value in message.get("MessageAttributes", {}).items()
        if "StringValue" in value
    }


def _rejecting(value: str) -> Any:
    return lambda delivery: REJECTED if delivery.value == value else ACKED


async def test_a_dead_letter_has_what_the_message_had_and_the_reason(queue: Queue) -> None:
    attributes = {
        "source": {"DataType": "String", "StringValue": "shop"},
        "count": {"DataType": "Number.int", "StringValue": "7"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = queue.server.sdk.send_message(
        QueueUrl=queue.url, MessageBody="bad", MessageAttributes=attributes
    )
    async with driving(queue.producer(max_deliveries=2), failing("bad")) as driver:
        await driver.advanced_count(2)
        (event, _) = driver.events
        assert event.attributes == {"source": "shop", "count": "7", "raw": b"\x00\xff"}
        assert [one.deliveries for one in driver.events] == [1, 2]
    (dead,) = await asyncio.to_thread(queue.server.take_all, queue.dead)
    assert dead["Body"] == "bad"
    assert {name: dead["MessageAttributes"][name] for name in attributes} == attributes
    evidence = _texts(dead)
    assert evidence[PREFIX + "reason"] == "1 of 1 watchers failed on delivery 2"
    assert evidence[PREFIX + "message-id"] == sent["MessageId"]
    assert evidence[PREFIX + "queue"] == queue.url.rpartition("/")[2]
    assert evidence[PREFIX + "deliveries"] == "2"
    assert await asyncio.to_thread(queue.counts) == (0, 0)


async def test_the_count_of_failures_survives_a_restart(queue: Queue) -> None:
    await asyncio.to_thread(queue.send, "bad")
    for _ in range(3):
        # The message fails once in each stream. If a stop gives it back, that counts as a delivery too.
        async with driving(queue.producer(max_deliveries=3), once("bad", FAILED)) as driver:
            await driver.advanced_count(1)
        if dead := await asyncio.to_thread(queue.server.take_all, queue.dead):
            break
    assert [message["Body"] for message in dead] == ["bad"]
    assert await asyncio.to_thread(queue.counts) == (0, 0)


async def test_the_queues_own_limit_counts_too_and_gives_a_reason(
    elasticmq: ElasticMqServer,
) -> None:
    dead = elasticmq.create_queue("own-limit-dead")
    url = elasticmq.create_queue("own-limit", dead_letters=dead, max_receive_count=2)
    await asyncio.to_thread(elasticmq.send, url, ["bad"])
    async with driving(producer_on(elasticmq, url, max_deliveries=0), failing("bad")) as driver:
        await driver.advanced_count(2)
        await driver.stay_quiet(1.0)
        assert len(driver.values) == 2
    (found,) = await asyncio.to_thread(elasticmq.take_all, dead)
    assert "failed on delivery 2" in _texts(found)[PREFIX + "reason"]


async def test_what_is_behind_a_failing_message_is_not_dead_lettered_with_it(fifo: Queue) -> None:
    await asyncio.to_thread(fifo.send, "bad", "good", "better")
    async with driving(fifo.producer(max_deliveries=3), failing("bad")) as driver:
        await driver.until(
            lambda: driver.values.count("bad") == 3 and driver.values[-1] == "better",
            "the group goes on",
        )
        await eventually(lambda: fifo.server.count(fifo.url) == 0, "all are done")
        assert driver.values.count("bad") == 3
    found = await asyncio.to_thread(fifo.server.take_all, fifo.dead)
    assert [message["Body"] for message in found] == ["bad"]
    assert found[0]["Attributes"]["MessageGroupId"] == "g"


async def test_a_rejected_message_goes_there_at_once(queue: Queue) -> None:
    await asyncio.to_thread(queue.send, "good", "junk")
    async with driving(queue.producer(), _rejecting("junk")) as driver:
        await driver.advanced_count(2)
    (dead,) = await asyncio.to_thread(queue.server.take_all, queue.dead)
    assert dead["Body"] == "junk"
    assert _texts(dead)[PREFIX + "reason"] == "rejected by 1 of 1 watchers"
    assert await asyncio.to_thread(queue.counts) == (0, 0)


async def test_a_message_that_two_watchers_reject_is_one_dead_letter(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = queue.server.connection | {"receive_wait_s": 1}
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: settings)
    async with StreamHarness() as streams:
        for wanted in (1, 2):
            await streams.add(SqsEventTrigger(queue.url, match={"kind": wanted}))
        (group,) = streams.groups.values()
        assert group.subscribers == 2
        await asyncio.to_thread(queue.send, "junk")
        await eventually(lambda: queue.counts() == (0, 0), "it is settled")
    (dead,) = await asyncio.to_thread(queue.server.take_all, queue.dead)
    assert _texts(dead)[PREFIX + "reason"] == "rejected by 2 of 2 watchers"


async def test_without_a_place_for_it_a_rejected_message_is_deleted(
    elasticmq: ElasticMqServer, caplog: Any
) -> None:
    url = elasticmq.create_queue("no-place")
    await asyncio.to_thread(elasticmq.send, url, ["junk"])
    async with driving(producer_on(elasticmq, url), _rejecting("junk")) as driver:
        await driver.advanced_count(1)
        assert await asyncio.to_thread(elasticmq.counts, url) == (0, 0)
    assert "message rejected by a watcher" in caplog.text


async def test_the_connection_may_name_the_place(elasticmq: ElasticMqServer) -> None:
    dead = elasticmq.create_queue("named-place")
    url = elasticmq.create_queue("without-policy")
    await asyncio.to_thread(elasticmq.send, url, ["junk"])
    producer = producer_on(elasticmq, url, dead_letter_queue="named-place")
    async with driving(producer, _rejecting("junk")) as driver:
        await driver.advanced_count(1)
    assert [one["Body"] for one in await asyncio.to_thread(elasticmq.take_all, dead)] == ["junk"]


async def test_where_the_place_takes_nothing_the_message_stays_and_others_go_on(
    queue: Queue, caplog: Any
) -> None:
    async def refuse(exchange: Exchange) -> Answer | None:
        if exchange.action == "SendMessage":
            return refusal("AccessDenied", "Access to the resource is denied.", 403)
        return None

    queue.proxy.before = refuse
    await asyncio.to_thread(queue.send, "junk", "good")
    async with driving(queue.producer(), _rejecting("junk")) as driver:
        await driver.until(lambda: driver.values.count("junk") >= 2, "it comes again")
        await driver.until(lambda: "good" in acked(driver), "the other is done")
    assert sum(await asyncio.to_thread(queue.counts)) == 1
    assert "message cannot be set aside and stays where it is" in caplog.text
    assert "SendMessage on its dead-letter queue" in caplog.text


async def test_reasons_give_way_to_the_messages_own_attributes(queue: Queue) -> None:
    own = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(9)}
    queue.server.sdk.send_message(QueueUrl=queue.url, MessageBody="junk", MessageAttributes=own)
    async with driving(queue.producer(), _rejecting("junk")) as driver:
        await driver.advanced_count(1)
    (dead,) = await asyncio.to_thread(queue.server.take_all, queue.dead)
    assert set(dead["MessageAttributes"]) == {*own, PREFIX + "reason"}


async def test_a_message_that_was_moved_back_and_fails_again_has_only_the_new_reasons(
    queue: Queue,
) -> None:
    own = {f"a{number}": {"DataType": "String", "StringValue": "x"} for number in range(3)}
    old = {
        f"{PREFIX}{name}": {"DataType": "String", "StringValue": "old"}
        for name in ("reason", "message-id", "queue", "deliveries", "acked", "failed", "rejected")
    }
    attributes = own | old
    queue.server.sdk.send_message(
        QueueUrl=queue.url, MessageBody="junk", MessageAttributes=attributes
    )
    async with driving(queue.producer(), _rejecting("junk")) as driver:
        await driver.advanced_count(1)
    (dead,) = await asyncio.to_thread(queue.server.take_all, queue.dead)
    texts = _texts(dead)
    assert texts.keys() > own.keys()
    assert texts[PREFIX + "reason"] == "rejected by 1 of 1 watchers"
    assert "old" not in texts.values()


async def test_a_message_too_long_for_a_reason_goes_without(queue: Queue) -> None:
    sent_with: list[int] = []

    async def refuse_long(exchange: Exchange) -> Answer | None:
        if exchange.action == "SendMessage":
            sent_with.append(len(exchange.request.get("MessageAttributes", {})))
            if sent_with[-1]:
                return refusal("InvalidParameterValue", "One or more parameters are invalid.")
        return None

    queue.proxy.before = refuse_long
    await asyncio.to_thread(queue.send, "junk")
    async with driving(queue.producer(), _rejecting("junk")) as driver:
        await driver.advanced_count(1)
    assert sent_with == [7, 0]
    assert len(await asyncio.to_thread(queue.server.take_all, queue.dead)) == 1


async def test_a_queue_that_is_to_be_its_own_dead_letter_queue_is_refused(queue: Queue) -> None:
    """In such a queue, each dead letter would come again as a new message, without end."""
    queue.send("a")
    settings = {"dead_letter_queue": queue.url, "redelivery_delay_s": 0.01}
    checked = SqsSettings.from_mapping("test", queue.server.connection | settings)
    with pytest.raises(BrokerRefused, match=r"is that queue itself .*come again at once"):
        await check_queue(checked, queue.url)
    async with driving(queue.producer(**settings), once("a", REJECTED)) as driver:
        # The rejected message stays in the queue, and comes again.
        await driver.count(2)
    first, second = (event.position["message_id"] for event in driver.events)
    assert first == second
