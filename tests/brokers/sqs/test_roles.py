"""Credentials of a role, a profile and the environment, against moto's STS and SQS."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from producers.sqs import SqsSharedStreamProducer
from producers.sqs.settings import SqsSettings
from tests.brokers.sqs.driving import driving, eventually, producer_on
from tests.services.brokers.moto import open_moto
from tests.services.brokers.sqs_client import SqsClient
from tests.services.brokers.sqs_proxy import open_sqs_proxy
from triggerer import abc
from triggerer.errors import BrokerError
from triggerer.testing import StreamHarness
from watchers.sqs import SqsEventTrigger


@pytest.fixture(scope="module")
def moto() -> Iterator[SqsClient]:
    with open_moto() as server:
        yield server


@pytest.fixture
def url(moto: SqsClient) -> str:
    return moto.create_queue(f"r-{uuid.uuid4().hex[:10]}")


async def test_the_keys_of_a_role_are_used_and_got_by_themselves(
    moto: SqsClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.endpoint)
    async with open_sqs_proxy(moto.endpoint) as proxy:
        role = "arn:aws:iam::123456789012:role/reader"
        producer = producer_on(
            moto, url, endpoint_url=proxy.endpoint, role_arn=role, external_id="shop"
        )
        await asyncio.to_thread(moto.send, url, ["a", "b"])
        async with driving(producer) as driver:
            await driver.advanced_count(2)
        assert {one.signed_by for one in proxy.exchanges} != {"test"}
    assert await asyncio.to_thread(moto.count, url) == 0


async def test_a_role_that_cannot_be_assumed_is_named(
    moto: SqsClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    producer = producer_on(moto, url, role_arn="arn:aws:iam::123456789012:role/reader")
    with pytest.raises(BrokerError, match=r"no connection to http://127\.0\.0\.1:1"):
        async with driving(producer) as driver:
            await driver.until(lambda: False, "it fails")


async def test_a_profile_is_read_from_the_sdks_files(
    moto: SqsClient, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(
        "[profile shop]\nregion = us-east-1\naws_access_key_id = of-profile\naws_secret_access_key = x\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    async with open_sqs_proxy(moto.endpoint) as proxy:
        settings = {"profile": "shop", "endpoint_url": proxy.endpoint, "receive_wait_s": 1}
        producer = SqsSharedStreamProducer(url, settings=SqsSettings.from_mapping("sqs", settings))
        await asyncio.to_thread(moto.send, url, ["a"])
        async with driving(producer) as driver:
            await driver.advanced_count(1)
        assert {one.signed_by for one in proxy.exchanges} == {"of-profile"}


async def test_credentials_whose_source_renews_them_too_late_end_no_stream(
    moto: SqsClient,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A metadata service, for instance, may return expired credentials for a while."""
    keys, config = tmp_path / "keys.json", tmp_path / "config"

    def hand_out(life: timedelta) -> None:
        over_at = (datetime.now(UTC) + life).isoformat()
        new = tmp_path / "new"
        new.write_text(
            f'{{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "{over_at}"}}'
        )
        new.replace(keys)

    # The SDK asks for new credentials at each request, because these have only five minutes left.
    hand_out(timedelta(minutes=5))
    config.write_text(f"[profile shop]\nregion = us-east-1\ncredential_process = cat {keys}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    settings = {"profile": "shop", "endpoint_url": moto.endpoint, "receive_wait_s": 1}
    producer = SqsSharedStreamProducer(url, settings=SqsSettings.from_mapping("sqs", settings))
    async with driving(producer) as driver:
        await asyncio.to_thread(moto.send, url, ["a"])
        await driver.advanced_count(1)
        hand_out(timedelta(minutes=-5))
        await eventually(lambda: "still expired" in caplog.text, "the credentials are refused")
        hand_out(timedelta(minutes=5))
        await asyncio.to_thread(moto.send, url, ["b"])
        await driver.advanced_count(2)


async def test_what_a_queue_promises_is_asked_of_it(
    moto: SqsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = moto.create_queue(f"d-{uuid.uuid4().hex[:10]}")
    name = f"p-{uuid.uuid4().hex[:10]}"
    url = moto.create_queue(name, visibility_s=20, dead_letters=dead, max_receive_count=4)
    settings = SqsSettings.from_mapping("sqs", moto.connection)
    monkeypatch.setattr(SqsEventTrigger, "_settings", lambda _: settings)
    trigger = SqsEventTrigger(name)
    await trigger.check_source()
    facts = await trigger.describe_delivery(ask=True)
    assert facts.is_acknowledged
    assert facts.is_renewed
    assert (facts.drops_after, facts.has_dead_letters) == (4, True)
    assert facts.retention is not None
    assert facts.retention.days == 4
    unasked = await trigger.describe_delivery(ask=False)
    assert (unasked.has_dead_letters, unasked.retention, unasked.source) == (None, None, None)
    by_url = await SqsEventTrigger(url).describe_delivery(ask=True)
    assert facts.source == by_url.source == f"queue {url}", "by its name and by its URL"
    moto.delete_queue(dead)
    with pytest.raises(BrokerError, match="queue does not exist"):
        await trigger.check_source()


async def test_two_streams_that_read_one_queue_are_warned_of(
    moto: SqsClient, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = url.rpartition("/")[2]
    async with driving(producer_on(moto, url)) as one:
        await one.stay_quiet(0.5)
        assert "another stream" not in caplog.text
        async with driving(producer_on(moto, name)):
            await eventually(lambda: "another stream" in caplog.text, "the second is open")
    (warning,) = (message for message in caplog.messages if "another stream" in message)
    assert f"another stream reads queue {url} too: each gets a part of the messages" in warning
    caplog.clear()
    async with driving(producer_on(moto, name)) as later:
        await later.stay_quiet(0.5)
    assert "another stream" not in caplog.text, "the others are closed"


async def test_name_and_url_are_one_stream_where_the_connection_states_the_account(
    moto: SqsClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, account, name = url.split("/")
    settings = moto.connection | {"account": account, "receive_wait_s": 1}
    monkeypatch.setattr(abc, "_resolve_connection", lambda _: settings)
    async with StreamHarness() as streams:
        views = [await streams.add(SqsEventTrigger(queue)) for queue in (name, url)]
        (group,) = streams.groups.values()
        assert group.subscribers == 2
        await asyncio.to_thread(moto.send, url, ["1", "2", "3"])
        await eventually(lambda: moto.count(url) == 0, "all are deleted")
        for view in views:
            assert sorted(event.payload["value"] for event in view.events) == [1, 2, 3]


async def test_a_queue_of_another_account_is_read_by_its_name(moto: SqsClient) -> None:
    async with open_sqs_proxy(moto.endpoint) as proxy:
        producer = producer_on(moto, "orders", endpoint_url=proxy.endpoint, account="210987654321")
        with pytest.raises(BrokerError, match="queue does not exist"):
            async with driving(producer) as driver:
                await driver.until(lambda: False, "it fails")
        (asked,) = proxy.exchanges
        assert asked.request["QueueOwnerAWSAccountId"] == "210987654321"
