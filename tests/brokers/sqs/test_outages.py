"""SQS throttles, refuses, is unreachable, or forgets the queue: no message is lost, and errors are clear."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from typing import Any

import anyio
import pytest
from botocore.exceptions import ClientError

from producers.sqs import SqsSharedStreamProducer
from producers.sqs.checking import check_queue
from producers.sqs.errors import Throttled, translate
from producers.sqs.settings import SqsSettings
from tests.brokers.sqs.conftest import Queue
from tests.brokers.sqs.driving import driving, eventually, producer_on
from tests.services.brokers.elasticmq import ElasticMqServer, open_elasticmq
from tests.services.brokers.sqs_proxy import Answer, Exchange, Lost, refusal
from tests.services.process import free_ports
from tests.services.tcp_proxy import open_tcp_proxy
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.testing.conformance.resolutions import gated, nothing


async def test_a_service_that_throttles_is_asked_less_often_and_ends_nothing(queue: Queue) -> None:
    throttled = 0

    async def throttle(exchange: Exchange) -> Answer | None:
        nonlocal throttled
        if throttled < 4:
            throttled += 1
            return refusal("RequestThrottled", "Rate exceeded")
        return None

    async with driving(queue.producer(unavailable_after_s=0.1)) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        # Throttle polls and deletes.
        queue.proxy.before = throttle
        await asyncio.to_thread(queue.send, "b")
        await driver.advanced_count(2)
        assert throttled == 4
    assert await asyncio.to_thread(queue.counts) == (0, 0)


@pytest.mark.rule("cloud credentials expire in mid-stream")
@pytest.mark.parametrize("action", ["ReceiveMessage", "DeleteMessageBatch"])
async def test_credentials_that_expire_end_the_stream_and_lose_nothing(
    queue: Queue, action: str
) -> None:
    async def expire(exchange: Exchange) -> Answer | None:
        if exchange.action in (action, "ChangeMessageVisibilityBatch"):
            return refusal("ExpiredToken", "The security token is expired", status=403)
        return None

    await asyncio.to_thread(queue.send, *"abc")
    with pytest.raises(BrokerRefused, match=r"expired.*role_arn or a profile is renewed"):  # noqa: PT012
        async with driving(
            queue.producer(visibility_timeout_s=1), gated(gate := [False])
        ) as driver:
            await driver.count(3)
            queue.proxy.before = expire
            gate[0] = True
            await driver.advance()
            await driver.until(lambda: False, "it ends")
    queue.proxy.before = None
    left = sum(await asyncio.to_thread(queue.counts))
    assert left == (3 if action == "DeleteMessageBatch" else 0)
    async with driving(queue.producer()) as driver:
        await driver.advanced_count(left)
    assert await asyncio.to_thread(queue.counts) == (0, 0)


async def test_a_network_that_is_cut_loses_nothing_and_ends_nothing(
    elasticmq: ElasticMqServer,
) -> None:
    name = f"o-{uuid.uuid4().hex[:10]}"
    url = await asyncio.to_thread(elasticmq.create_queue, name, visibility_s=1)
    with open_tcp_proxy(elasticmq.port) as proxy:
        producer = producer_on(elasticmq, url, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        async with driving(producer) as driver:
            sent = 0
            for _ in range(3):
                values = [f"m{number}" for number in range(sent, sent + 50)]
                await asyncio.to_thread(elasticmq.send, url, values)
                sent += 50
                await driver.until(
                    lambda sent=sent: len(set(driver.values)) > sent - 40, "most come"
                )
                proxy.refuse()
                await asyncio.sleep(0.3)
                proxy.heal()
            await driver.until(lambda: len(set(driver.values)) == sent, "all come")
            await eventually(lambda: elasticmq.count(url) == 0, "all are deleted")
            # Messages of a cut connection came again after their visibility timeout, with the same keys.
            assert len({one.key for one in driver.deliveries}) == sent


async def test_an_answer_that_was_lost_blocks_no_group(fifo: Queue) -> None:
    """The producer asks again with the same attempt id, and gets the messages of the lost answer."""
    lost = 0

    async def lose(exchange: Exchange) -> None:
        nonlocal lost
        if exchange.answer.get("Messages") and lost < 2:
            lost += 1
            raise Lost

    fifo.proxy.after = lose
    await asyncio.to_thread(fifo.send, *"abc")
    async with driving(fifo.producer()) as driver:
        await driver.advanced_count(3)
        assert lost == 2
        assert driver.values == ["a", "b", "c"]
    assert await asyncio.to_thread(fifo.counts) == (0, 0)


async def test_a_service_that_is_restarted_ends_no_stream() -> None:
    """The proxy refuses connections until ElasticMQ has restored the queue.

    Before that, ElasticMQ answers that the queue does not exist, which ends a stream. SQS never answers this after an
    outage.
    """
    with open_elasticmq(durable=True) as server, open_tcp_proxy(server.port) as proxy:
        url = server.create_queue("restarted", visibility_s=2)
        producer = producer_on(server, url, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        async with driving(producer) as driver:
            await asyncio.to_thread(server.send, url, [f"a{number}" for number in range(20)])
            await driver.advanced_count(20)
            # The stream's open poll fails because the server stops, not because of the proxy.
            await asyncio.to_thread(server.stop)
            proxy.refuse()
            await asyncio.to_thread(server.start)
            proxy.heal()
            await asyncio.to_thread(server.send, url, [f"b{number}" for number in range(20)])
            await driver.until(lambda: len(set(driver.values)) == 40, "it goes on")
            await eventually(lambda: server.count(url) == 0, "all are deleted")


async def test_a_service_that_stays_away_ends_the_stream_in_the_time_that_is_set() -> None:
    with open_elasticmq() as server:
        url = server.create_queue("away")
        # The error comes from the request that was open at the kill, or from a later one.
        last = "receiving from queue 'away': (no conn|Connection was closed)"
        with pytest.raises(BrokerUnavailable, match=last):  # noqa: PT012
            async with driving(producer_on(server, url, unavailable_after_s=0.5)) as driver:
                await asyncio.to_thread(server.send, url, ["a"])
                await driver.advanced_count(1)
                await asyncio.to_thread(server.kill)
                await driver.until(lambda: False, "it ends")


async def test_the_time_in_which_no_poll_may_begin_is_no_outage(queue: Queue) -> None:
    refused = 0

    async def refuse_once(exchange: Exchange) -> Answer | None:
        nonlocal refused
        if exchange.action == "ReceiveMessage" and not refused:
            refused += 1
            return refusal("InternalFailure", "Not now.", 500)
        return None

    await asyncio.to_thread(queue.send, "a", "b")
    producer = queue.producer(max_in_flight=1, unavailable_after_s=0.5)
    async with driving(producer, gated(gate := [False])) as driver:
        await driver.count(1)
        await driver.stay_quiet(1.0)
        queue.proxy.before = refuse_once
        gate[0] = True
        await driver.advance()
        await driver.advanced_count(2)
        assert refused == 1
    assert await asyncio.to_thread(queue.counts) == (0, 0)


async def test_a_queue_that_is_deleted_and_made_again_is_another(queue: Queue) -> None:
    """SQS gives each message a new id, so a message of the new queue does not count as a repeat of an old message."""
    await asyncio.to_thread(queue.send, "a")
    keys = []
    with pytest.raises(BrokerRefused, match=r"queue does not exist.*check the queue's name"):  # noqa: PT012
        async with driving(queue.producer(request_timeout_s=1), nothing) as driver:
            await driver.count(1)
            keys.append(driver.deliveries[0].key)
            await asyncio.to_thread(queue.server.delete_queue, queue.url)
            await driver.until(lambda: False, "it ends")
    name = queue.url.rpartition("/")[2]
    assert await asyncio.to_thread(queue.server.create_queue, name) == queue.url
    await asyncio.to_thread(queue.send, "a")
    async with driving(queue.producer()) as driver:
        await driver.advanced_count(1)
        keys.append(driver.deliveries[0].key)
    assert len(set(keys)) == 2


async def test_nothing_is_asked_but_the_long_poll_while_there_is_nothing(queue: Queue) -> None:
    async with driving(queue.producer(receive_wait_s=2)) as driver:
        await driver.stay_quiet(5.0)
        asked = [exchange.action for exchange in queue.proxy.exchanges]
    assert asked[0] == "GetQueueAttributes"
    assert set(asked[1:]) == {"ReceiveMessage"}
    assert len(asked) - 1 <= 4


async def test_a_backlog_is_received_by_several_polls_within_the_bound(queue: Queue) -> None:
    await asyncio.to_thread(queue.send, *(f"m{number}" for number in range(200)))
    open_polls, most = 0, 0

    async def count(exchange: Exchange) -> None:
        nonlocal open_polls
        if exchange.action == "ReceiveMessage":
            await asyncio.sleep(0.05)
            open_polls -= 1

    async def enter(exchange: Exchange) -> None:
        nonlocal open_polls, most
        if exchange.action == "ReceiveMessage":
            open_polls += 1
            most = max(most, open_polls)

    queue.proxy.before, queue.proxy.after = enter, count  # type: ignore[assignment]
    async with driving(queue.producer(receivers=3, max_in_flight=95), nothing) as driver:
        await driver.count(95)
        await driver.stay_quiet(0.5)
        assert len(driver.values) == 95
        assert await asyncio.to_thread(queue.counts) == (105, 95)
    assert most == 3


# Errors that an operator sees at the start


async def _failure(queue: str, **settings: Any) -> BrokerError:
    producer = SqsSharedStreamProducer(queue, settings=SqsSettings.from_mapping("sqs", settings))
    with pytest.raises(BrokerError) as caught:
        async with driving(producer) as driver:
            await driver.until(lambda: False, "it fails")
    with pytest.raises(type(caught.value), match=re.escape(str(caught.value))):
        await check_queue(SqsSettings.from_mapping("sqs", settings), queue)
    return caught.value


async def test_a_wrong_name_is_named(elasticmq: ElasticMqServer) -> None:
    error = await _failure("ordres", **elasticmq.connection)
    assert isinstance(error, BrokerRefused)
    assert str(error) == (
        "looking up queue 'ordres': The specified queue does not exist (QueueDoesNotExist)"
        " (check the queue's name, the region and the account)"
    )


async def test_a_service_that_is_away_is_named(elasticmq: ElasticMqServer) -> None:
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    error = await _failure("orders", **elasticmq.connection | {"endpoint_url": endpoint})
    assert isinstance(error, BrokerUnavailable)
    assert str(error) == (
        f"looking up queue 'orders': no connection to {endpoint}/"
        " (is SQS (or its emulator) running, and are region and endpoint_url right?)"
    )


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        ("AccessDenied", 403, "the identity needs sqs:GetQueueUrl"),
        ("InvalidClientTokenId", 403, "check access_key_id and secret_access_key"),
        ("SignatureDoesNotMatch", 403, "check access_key_id and secret_access_key"),
        ("ExpiredToken", 403, "the session_token has expired"),
        ("KmsAccessDenied", 400, "kms:Decrypt"),
        ("InvalidAddress", 404, "that the connection's region is the one in it"),
    ],
)
async def test_a_refusal_says_what_to_do(queue: Queue, code: str, status: int, hint: str) -> None:
    async def refuse(exchange: Exchange) -> Answer | None:
        return refusal(code, "No.", status)

    queue.proxy.before = refuse
    settings = queue.server.connection | {"endpoint_url": queue.proxy.endpoint}
    error = await _failure(queue.url, **settings)
    assert isinstance(error, BrokerRefused)
    assert str(error).startswith(
        f"looking up queue {queue.url.rpartition('/')[2]!r}: No ({code}) ("
    )
    assert hint in str(error)


async def test_messages_that_cannot_be_kept_are_told_of_at_growing_distances(
    brief: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """In an earlier version, each failed renewal made a log line. An outage with many messages made thousands."""
    asked = 0

    async def fail(exchange: Exchange) -> Answer | None:
        nonlocal asked
        if exchange.action == "ChangeMessageVisibilityBatch":
            asked += len(exchange.request["Entries"])
        return refusal("InternalFailure", "Not now.", 500)

    await asyncio.to_thread(brief.send, *(f"m{number}" for number in range(10)))
    with caplog.at_level(logging.WARNING, "producers.sqs"):
        async with driving(brief.producer(), nothing) as driver:
            await driver.count(10)
            brief.proxy.before = fail
            await eventually(lambda: asked > 300, "it is tried again and again")
            brief.proxy.before = None
    lines = [one for one in caplog.messages if "could not be renewed, and may come again" in one]
    assert 1 <= len(lines) <= 5


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        ("KMS.AccessDeniedException", BrokerRefused, "kms:Decrypt"),
        ("KMS.DisabledException", BrokerRefused, "the queue's key is disabled"),
        ("KMS.InvalidStateException", BrokerRefused, "is it about to be deleted"),
        ("KMS.OptInRequired", BrokerRefused, "the key management service"),
        ("KMS.ThrottlingException", Throttled, "(KmsThrottled)"),
        ("AWS.SimpleQueueService.NonExistentQueue", BrokerRefused, "check the queue's name"),
    ],
)
def test_a_key_that_cannot_be_used_is_no_missing_right_on_the_queue(
    code: str, kind: type[Exception], hint: str
) -> None:
    """The SDK may report the code of SQS's older query protocol, which SQS sends in a header."""
    answer = {"Error": {"Code": code, "Message": "No.", "QueryErrorCode": "any", "Type": "Sender"}}
    error = translate(ClientError(answer, "ReceiveMessage"), "receiving from queue 'q'")  # type: ignore[arg-type]
    assert type(error) is kind
    assert hint in str(error)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Hide the credentials and the region that environment variables, files or a metadata service may give."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.mark.usefixtures("no_environment")
async def test_a_missing_region_missing_keys_and_a_missing_profile_are_named(
    elasticmq: ElasticMqServer,
) -> None:
    endpoint = {"endpoint_url": elasticmq.endpoint}
    assert "the region is not known (give region)" in str(await _failure("orders", **endpoint))
    error = await _failure("orders", region="eu-central-1", **endpoint)
    assert "there are no credentials (give access_key_id" in str(error)
    error = await _failure("orders", region="eu-central-1", profile="shop", **endpoint)
    assert "The config profile (shop) could not be found" in str(error)
    error = await _failure("orders", **elasticmq.connection | {"endpoint_url": "localhost"})
    assert "Invalid endpoint: localhost (check endpoint_url)" in str(error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"acces_key_id": "x"},
            "unknown key 'acces_key_id' in [connections.sqs] (did you mean 'access_key_id'?)",
        ),
        ({"access_key_id": "x"}, "secret_access_key is missing in [connections.sqs]"),
        ({"session_token": "x"}, "access_key_id is missing in [connections.sqs]"),
        ({"account": "shop"}, "account in [connections.sqs] is 'shop'"),
        ({"receive_wait_s": 30}, "receive_wait_s in [connections.sqs]"),
        ({"external_id": "x"}, "external_id is given in [connections.sqs], and no role_arn"),
        (
            {"profile": "p", "access_key_id": "x", "secret_access_key": "y"},
            "both profile and access_key_id",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        SqsSettings.from_mapping("sqs", settings)
    assert "pydantic" not in str(caught.value)


def test_secrets_are_in_no_text() -> None:
    secret = {"access_key_id": "id", "secret_access_key": "hush", "session_token": "hush"}
    settings = SqsSettings.from_mapping("sqs", secret)
    assert "hush" not in repr(settings)
    with pytest.raises(ConfigurationError) as caught:
        SqsSettings.from_mapping("sqs", secret | {"secret_access_key": 5})
    assert "5" not in str(caught.value)


async def test_no_message_of_the_log_has_a_secret(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with driving(queue.producer(secret_access_key="hush-hush")) as driver:
            await asyncio.to_thread(queue.send, "a")
            await driver.advanced_count(1)
    assert "hush-hush" not in caplog.text


async def test_an_open_stream_is_cancelled_while_it_connects(elasticmq: ElasticMqServer) -> None:
    producer = producer_on(elasticmq, "x")
    with anyio.move_on_after(0.001):
        async for _ in producer.open_stream():
            raise AssertionError
    await producer.aclose()


def test_one_client_reads_the_queues_of_the_region_in_the_url() -> None:
    from producers.sqs.connecting import _region_of

    assert _region_of("https://sqs.eu-west-1.amazonaws.com/123/q") == "eu-west-1"
    assert _region_of("https://eu-west-1.queue.amazonaws.com/123/q") == "eu-west-1"
    assert _region_of("http://127.0.0.1:9324/000/q") is None
    assert _region_of("orders") is None
