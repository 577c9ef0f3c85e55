"""Errors that an operator sees, such as for wrong names; and how few requests a stream makes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest

from producers.pubsub import check_subscription, describe_delivery, receiving
from producers.pubsub.connecting import Access
from producers.pubsub.settings import PubSubSettings
from tests.brokers.pubsub.driving import driven, producer_on, settings_for
from tests.brokers.pubsub.test_scenarios import eventually
from tests.services.brokers.pubsub_double import TRANSIENT, Entry, PubSubDouble
from tests.services.process import free_ports
from triggerer.domain.watchers.guarantees import Guarantee, guarantee_of
from triggerer.errors import BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.testing.conformance.resolutions import failing, nothing


async def test_a_subscription_that_is_not_there_ends_the_stream_with_a_hint(
    double: PubSubDouble, name: str
) -> None:
    with pytest.raises(BrokerRefused, match="NOT_FOUND") as refused:
        async with driven(producer_on(double.host, name)) as driver:
            await driver.count(1)
    assert f"projects/tests/subscriptions/{name} at {double.host}" in str(refused.value)
    assert "does it exist" in str(refused.value)
    assert double.counts["StreamingPull"] == 1


async def test_a_subscription_that_is_deleted_ends_the_stream(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    async with driven(producer_on(double.host, name)) as driver:
        await driver.advanced_count(1)
        double.delete_subscription(name)
        with pytest.raises(BrokerRefused, match="NOT_FOUND"):
            await driver.count(2)


@pytest.mark.parametrize("method", ["StreamingPull", "Acknowledge"])
async def test_a_permission_that_is_missing_ends_the_stream_and_names_the_role(
    double: PubSubDouble, name: str, method: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    double.refuse(method, grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(BrokerRefused, match=r"roles/pubsub\.subscriber"):
        async with driven(producer_on(double.host, name)) as driver:
            await driver.advanced_count(1)


async def test_credentials_that_are_good_no_more_end_the_stream_and_name_the_setting(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    async with driven(producer_on(double.host, name)) as driver:
        await driver.advanced_count(1)
        double.refuse("StreamingPull", grpc.StatusCode.UNAUTHENTICATED)
        double.break_streams()
        with pytest.raises(BrokerRefused, match=r"UNAUTHENTICATED.*check credentials_file"):
            await driver.count(2)


async def test_a_service_that_is_away_at_the_start_ends_the_stream_soon() -> None:
    (port,) = free_ports(1)
    producer = producer_on(f"127.0.0.1:{port}", "flights")
    with (
        pytest.raises(BrokerUnavailable, match=r"UNAVAILABLE.*is it reachable from here"),
        # Until the stream ends, its watchers are shown as running. So it must end soon.
        anyio.fail_after(15),
    ):
        async with driven(producer) as driver:
            await driver.count(1)


async def test_a_stream_that_was_never_open_was_no_steady_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A stream that was open for `_STEADY_S` resets the delays and the deadline. An attempt to connect must not reset
    # them, however long it takes.
    monkeypatch.setattr(receiving, "_STEADY_S", 1e-9)
    (port,) = free_ports(1)
    producer = producer_on(f"127.0.0.1:{port}", "flights", connect_timeout_s=0.1)
    with pytest.raises(BrokerUnavailable), anyio.fail_after(15):
        async with driven(producer) as driver:
            await driver.count(1)


async def test_a_service_that_goes_away_for_too_long_ends_the_stream(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    async with driven(producer_on(double.host, name, unavailable_timeout_s=0.5)) as driver:
        await driver.advanced_count(1)
        double.refuse("StreamingPull", grpc.StatusCode.UNAVAILABLE)
        double.break_streams()
        with pytest.raises(BrokerUnavailable):
            await driver.count(2)


async def test_streams_that_the_service_ends_again_and_again_lose_and_repeat_nothing(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, enable_message_ordering=True)
    values = [f"m{number}" for number in range(200)]
    async with driven(producer_on(double.host, name)) as driver:
        for start in range(0, 200, 20):
            double.publish(name, values[start : start + 20], key="k")
            await driver.count(start + 5)
            double.break_streams()
        await driver.advanced_count(200)
        assert driver.values == values
    assert [one.attempts for one in double.entries(name)] == [1] * 200


async def test_a_transient_refusal_of_one_id_is_repeated_for_that_id_alone(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, enable_exactly_once_delivery=True)
    double.publish(name, ["a", "b"])
    left = [2]

    def decide(method: str, entry: Entry) -> str | None:
        if method == "Acknowledge" and entry.value == "a" and left[0]:
            left[0] -= 1
            return TRANSIENT
        return None

    double.fail_ids(decide)
    async with driven(producer_on(double.host, name)) as driver:
        await driver.advanced_count(2)
        assert all(one.is_acked and one.attempts == 1 for one in double.entries(name))
    by_value = {one.value: one for one in double.entries(name)}
    sent = [request.ack_ids for request in double.requests if request.method == "Acknowledge"]
    assert sum(by_value["b"].ack_id in ids for ids in sent) == 1
    assert sum(by_value["a"].ack_id in ids for ids in sent) == 3


async def test_many_acknowledgements_are_few_requests(double: PubSubDouble, name: str) -> None:
    double.create(name)
    double.publish(name, [f"m{number}" for number in range(1_000)])
    async with driven(producer_on(double.host, name)) as driver:
        await driver.advanced_count(1_000)
    assert double.counts["Acknowledge"] <= 200
    assert double.counts["ModifyAckDeadline"] == 0, "a lease was extended before it was half over"


async def test_an_idle_stream_sends_nothing(double: PubSubDouble, name: str) -> None:
    double.create(name)
    double.counts.clear()
    async with driven(producer_on(double.host, name, ack_deadline_s=1)) as driver:
        await eventually(lambda: double.counts["StreamingPull"], "the stream is open")
        await driver.stay_quiet(2.0)
        assert dict(double.counts) == {"StreamingPull": 1}


async def test_a_dead_letter_says_where_it_comes_from_and_why(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, enable_message_ordering=True)
    double.create(f"{name}-dead")
    double.publish(name, ["bad"], key="k", attributes={"source": "radar"})
    producer = producer_on(
        double.host, name, max_deliveries=2, dead_letter_topic=f"projects/tests/topics/{name}-dead"
    )
    async with driven(producer, failing("bad")) as driver:
        await eventually(lambda: double.entries(f"{name}-dead"), "it is dead-lettered")
        await driver.advanced_count(2)
    (dead,) = double.entries(f"{name}-dead")
    attributes = dict(dead.message.attributes)
    assert (dead.value, dead.message.ordering_key) == ("bad", "k")
    assert attributes.pop("source") == "radar"
    assert attributes.pop("triggerer.dead-letter.published-at")
    assert {
        key.removeprefix("triggerer.dead-letter."): value for key, value in attributes.items()
    } == {
        "reason": "1 of 1 watchers failed on delivery 2",
        "subscription": f"projects/tests/subscriptions/{name}",
        "message-id": "1",
        "acked": "0",
        "failed": "1",
        "rejected": "0",
        "deliveries": "2",
    }


async def test_a_message_stays_where_it_is_while_it_cannot_be_dead_lettered(
    double: PubSubDouble, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    double.create(name)
    double.publish(name, ["bad"])
    producer = producer_on(double.host, name, max_deliveries=1, dead_letter_topic="not-there")
    async with driven(producer, failing("bad")) as driver:
        await driver.count(3)
        assert not double.entries(name)[0].is_acked
    assert "does the topic projects/tests/topics/not-there exist" in caplog.text


async def test_messages_with_equal_ids_of_two_topics_made_one_after_the_other_have_other_keys(
    double: PubSubDouble, name: str
) -> None:
    keys = []
    for _ in range(2):
        double.restart_numbers()
        double.create(name)
        double.publish(name, ["a"])
        async with driven(producer_on(double.host, name), nothing) as driver:
            await driver.count(1)
            keys.append(driver.deliveries[0].key)
        double.delete(name)
    assert keys[0] != keys[1]
    assert {str(key).partition("@")[0] for key in keys} == {
        f"projects/tests/subscriptions/{name}/1"
    }


# check_source


async def test_a_subscription_that_can_be_read_passes_the_check_and_keeps_its_messages(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.publish(name, ["a"])
    await check_subscription(settings_for(double.host), name)
    assert double.entries(name)[0].attempts == 0


async def test_the_check_finds_what_is_wrong_with_a_subscription(
    double: PubSubDouble, name: str
) -> None:
    settings = settings_for(double.host, dead_letter_topic=name)
    with pytest.raises(BrokerRefused, match="NOT_FOUND"):
        await check_subscription(settings, name)
    double.create(name)
    with pytest.raises(BrokerRefused, match="a dead letter would come again"):
        await check_subscription(settings, name)
    double.find(name).proto.push_config.push_endpoint = "https://example.org/push"
    with pytest.raises(BrokerRefused, match="pushes its messages to https"):
        await check_subscription(settings, name)
    double.find(name).proto.push_config.push_endpoint = ""
    double.find(name).proto.bigquery_config.table = "shop.raw.orders"
    with pytest.raises(BrokerRefused, match=r"pushes its messages to shop\.raw\.orders"):
        await check_subscription(settings, name)
    double.find(name).proto.bigquery_config.table = ""
    double.find(name).proto.topic = "_deleted-topic_"
    with pytest.raises(BrokerRefused, match="no longer attached to a topic"):
        await check_subscription(settings, name)


async def test_an_account_that_may_read_and_not_look_passes_the_check(
    double: PubSubDouble, name: str
) -> None:
    double.create(name)
    double.refuse("GetSubscription", grpc.StatusCode.PERMISSION_DENIED)
    await check_subscription(settings_for(double.host), name)
    double.refuse("ModifyAckDeadline", grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(BrokerRefused, match=r"roles/pubsub\.subscriber"):
        await check_subscription(settings_for(double.host), name)


async def test_what_a_watcher_promises_follows_from_settings_and_subscription(
    double: PubSubDouble, name: str
) -> None:
    double.create(f"{name}-dead")
    double.create(
        name,
        message_retention_duration={"seconds": 600},
        dead_letter_policy={
            "dead_letter_topic": f"projects/tests/topics/{name}-dead",
            "max_delivery_attempts": 5,
        },
    )
    unasked = await describe_delivery(settings_for(double.host), name, ask=False)
    assert (unasked.drops_after, unasked.has_dead_letters, unasked.retention) == (None, None, None)
    facts = await describe_delivery(
        settings_for(double.host, dead_letter_topic="dead"), name, ask=True
    )
    assert (facts.drops_after, facts.has_dead_letters) == (5, True)
    assert facts.retention == timedelta(minutes=10)
    assert facts.redelivers_after == timedelta(seconds=10)
    assert facts.renewed_for == timedelta(hours=1)
    promised = guarantee_of(facts, ack_timeout=timedelta(minutes=5))
    assert (promised.guarantee, promised.warnings) == (Guarantee.EFFECTIVELY_ONCE, ())


async def test_a_subscription_without_a_place_for_dead_letters_is_warned_of(
    double: PubSubDouble, name: str
) -> None:
    double.create(name, message_retention_duration={"seconds": 7 * 24 * 3600})
    facts = await describe_delivery(settings_for(double.host), name, ask=True)
    (warning,) = guarantee_of(facts, ack_timeout=timedelta(minutes=5)).warnings
    assert "delivered again until it is dropped after 7 days" in str(warning)
    assert "dead_letter_topic" in str(warning)
    topic = settings_for(double.host, dead_letter_topic="dead")
    asked = await describe_delivery(topic, name, ask=True)
    assert guarantee_of(asked, ack_timeout=timedelta(minutes=5)).warnings == ()


async def test_the_check_says_that_nobody_answers() -> None:
    (port,) = free_ports(1)
    with pytest.raises(BrokerUnavailable, match="is it reachable"):
        await check_subscription(settings_for(f"127.0.0.1:{port}"), "flights")


# Settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"projekt": "p"}, "unknown key 'projekt'.*did you mean 'project'"),
        ({"ack_deadline_s": 5}, "ack_deadline_s .* between 10 and 600, not 5"),
        ({"ack_deadline_s": "soon"}, "ack_deadline_s"),
        ({"min_ack_deadline_s": 601}, "between 10 and 600"),
        ({"emulator_host": "http://localhost:8085", "project": "p"}, "without a scheme"),
        ({"emulator_host": "localhost:8085"}, "project is missing"),
        ({"endpoint": "https://europe-west3-pubsub.googleapis.com"}, "without a scheme"),
        ({"max_outstanding_messages": 0}, "must be above 0"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        PubSubSettings.from_mapping("pubsub", given)


def test_a_name_without_any_project_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no project is known for 'flights'"):
        Access(None, None).path("subscriptions", "flights")


# Google's library warns of credential files from untrusted sources. This test writes the file itself.
@pytest.mark.filterwarnings("ignore:The load_credentials_from_file:DeprecationWarning")
async def test_credentials_that_cannot_be_used_are_a_mistake_of_configuration(
    tmp_path: Path,
) -> None:
    file = tmp_path / "key.json"
    settings = PubSubSettings.from_mapping("pubsub", {"credentials_file": str(file)})
    for content in (None, "{}", '{"type": "service_account"}', "not json"):
        if content is not None:
            file.write_text(content)
        with pytest.raises(ConfigurationError, match=r"key\.json"):
            await check_subscription(settings, "flights")


@pytest.mark.filterwarnings("ignore:The load_credentials_from_dict:DeprecationWarning")
@pytest.mark.parametrize(
    "content", ["{}", '{"type": "service_account", "private_key": "hush"}', "{hush"]
)
async def test_what_is_in_the_file_may_be_given_and_is_in_no_message(content: str) -> None:
    settings = PubSubSettings.from_mapping("pubsub", {"credentials_file": content})
    assert "hush" not in repr(settings)
    with pytest.raises(ConfigurationError, match="credentials_file") as refused:
        await check_subscription(settings, "flights")
    assert "hush" not in str(refused.value)
