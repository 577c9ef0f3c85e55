"""Connections that cannot be meant, and what comes out of SDK calls."""

import asyncio
import secrets
import traceback
from typing import Any

import anyio
import pytest
from aiokafka import errors as sdk

from producers.kafka import KafkaSharedStreamProducer, check_topics
from producers.kafka.errors import guarded
from producers.kafka.settings import KafkaSettings
from triggerer.errors import BrokerRefused, BrokerUnavailable, ConfigurationError


def settings(**values: Any) -> KafkaSettings:
    return KafkaSettings.from_mapping("kafka", {"bootstrap_servers": "a:1"} | values)


def test_values_from_the_environment_are_text_and_become_what_is_needed() -> None:
    one = settings(max_deliveries="3", redelivery_delay_s="1.5", ssl_check_hostname="no")
    assert (one.max_deliveries, one.redelivery_delay_s, one.ssl_check_hostname) == (3, 1.5, False)
    assert settings(max_deliveries=None).max_deliveries is None
    assert settings(sasl_password="secret").sasl_plain_password == "secret"
    assert settings(bootstrap_servers=["a:1", "b:2"]).bootstrap_servers == "a:1,b:2"
    for servers in ("a", "[::1]:1, a:2", "::1"):
        assert settings(bootstrap_servers=servers).bootstrap_servers == servers


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bootstrap_server": "a"}, "did you mean 'bootstrap_servers'"),
        ({"sasl_passwort": "a"}, "did you mean 'ssl_password'"),
        ({"zzz": 1}, "unknown key 'zzz' in .*the nearest key is"),
        ({"bootstrap_servers": ""}, "bootstrap_servers is missing"),
        ({"bootstrap_servers": "a:1,"}, "bootstrap_servers in .* is 'a:1,' .host:port"),
        ({"bootstrap_servers": "a:b"}, "host:port"),
        ({"bootstrap_servers": "PLAINTEXT://a:1"}, "host:port"),
        ({"bootstrap_servers": "me:s3cret@a:1"}, "has a user in it"),
        ({"schema_registry_url": "localhost:8081"}, "schema_registry_url in .*http://host:port"),
        ({"security_protocol": "TLS"}, "one of PLAINTEXT, SSL"),
        ({"security_protocol": "SASL_SSL"}, "sasl_plain_username is missing"),
        ({"max_deliveries": "many"}, "a number is needed"),
        ({"max_deliveries": -1}, "must not be negative"),
        ({"heartbeat_interval_ms": 10_000}, "must be below session_timeout_ms"),
        ({"ssl_check_hostname": "perhaps"}, "true or false"),
        ({"client_id": 5}, "a text is needed"),
        ({"session_timeout_ms": 10_000.5}, "is 10000.5 .a whole number is needed"),
        ({"max_batch": 0}, "max_batch in .* must be above 0"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_with_its_place(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        settings(**values)
    assert "[connections.kafka]" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_kerberos_without_its_package_is_a_mistake_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an earlier version, the client library raised an `AssertionError`."""
    monkeypatch.setattr("producers.kafka.settings.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match="pip install gssapi"):
        settings(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI")


@pytest.mark.parametrize("place", ["orders", "{topic}"])
async def test_dead_letters_do_not_go_into_a_topic_that_is_read(place: str) -> None:
    """In an earlier version, a failed message came again as a new message, without end."""
    itself = settings(dead_letter_topic=place)
    with pytest.raises(ConfigurationError, match=r"'orders' is read .*come again at once"):
        await check_topics(itself, ["orders"])
    producer = KafkaSharedStreamProducer(["orders"], settings=itself, group="g")
    with pytest.raises(ConfigurationError, match="'orders' is read"):
        await anext(producer.open_stream())
    await producer.aclose()
    # A stream may read a topic and its dead-letter topic, whose own dead letters go to a third topic.
    settings().check_dead_letters(["orders", "orders.dead-letter"])


@pytest.mark.parametrize("key", ["sasl_password", "sasl_plain_password", "ssl_password"])
def test_a_password_is_not_shown(key: str) -> None:
    password = secrets.token_hex()
    assert password not in repr(settings(**{key: password}))
    with pytest.raises(ConfigurationError) as caught:
        settings(**{key: [password.encode()]})
    assert password not in "".join(traceback.format_exception(caught.value))


def test_tls_files_that_are_missing_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"/no/such\.pem"):
        settings(security_protocol="SSL", ssl_cafile="/no/such.pem").client_arguments()


async def test_a_cancellation_that_the_library_invented_is_an_error() -> None:
    async def cancels_itself() -> None:
        raise asyncio.CancelledError

    with pytest.raises(BrokerUnavailable, match=r"commit to g.*cancelled itself"):
        await guarded(cancels_itself(), "commit to g")


async def test_a_cancellation_that_was_asked_for_stays_one() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await guarded(anyio.sleep(1), "commit")
        raise AssertionError("not reached")
    assert scope.cancelled_caught
    task = asyncio.get_running_loop().create_task(guarded(asyncio.sleep(10), "commit"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (sdk.TopicAuthorizationFailedError("t"), BrokerRefused),
        (sdk.AuthenticationFailedError("no"), BrokerRefused),
        (sdk.KafkaConnectionError("gone"), BrokerUnavailable),
        (sdk.RequestTimedOutError(), BrokerUnavailable),
        (ConnectionResetError("gone"), BrokerUnavailable),
        (sdk.ConsumerStoppedError(), BrokerUnavailable),
    ],
)
async def test_errors_of_the_sdk_go_no_further(error: Exception, kind: type[Exception]) -> None:
    async def fails() -> None:
        raise error

    with pytest.raises(kind, match="fetch from t") as caught:
        await guarded(fails(), "fetch from t")
    assert caught.value.__cause__ is error
