"""TLS and the ways to log in, against a broker that asks for them."""

import asyncio
import gc
import threading
import uuid
from base64 import b64decode
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import anyio
import pytest
from aiokafka import errors as sdk
from confluent_kafka.admin import AclOperation, ResourceType

from producers.kafka.connection.oauth import EndpointTokens
from tests.brokers.kafka.driving import driving, producer_on
from tests.services.availability import service
from tests.services.brokers.kafka_secure import STRANGER, SecureKafka, make_token, open_secure_kafka
from tests.services.http_answers import JsonHandler
from triggerer.errors import BrokerError, BrokerRefused

# If connecting is cancelled, aiokafka 0.14 drops the connection without closing it.
pytestmark = pytest.mark.filterwarnings("ignore:(?i)unclosed:ResourceWarning")


@pytest.fixture(autouse=True)
def _collected_here() -> Iterator[None]:
    """Collect garbage here, so that no other test reports an unclosed connection."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def secure_kafka() -> Iterator[SecureKafka]:
    with service(open_secure_kafka()) as server:
        server.create_topic("secrets")
        server.produce("secrets", [*"abc"])
        yield server


async def read(connection: dict[str, Any]) -> list[str]:
    servers = connection["bootstrap_servers"]
    others = {key: value for key, value in connection.items() if key != "bootstrap_servers"}
    async with driving(producer_on(servers, "secrets", uuid.uuid4().hex, **others)) as driver:
        await driver.settled(3)
        # `find_positions` opens a second connection, which logs in separately.
        assert len(await driver.producer.find_positions(None)) == 1
    return driver.values


async def refusal(connection: dict[str, Any]) -> BaseException:
    servers = connection["bootstrap_servers"]
    others = {key: value for key, value in connection.items() if key != "bootstrap_servers"}
    quick = {"request_timeout_ms": 5000, **others}
    async with driving(producer_on(servers, "secrets", uuid.uuid4().hex, **quick)) as driver:
        return await driver.until_failed()


async def test_a_client_with_a_certificate_is_let_in_and_one_without_is_told(
    secure_kafka: SecureKafka,
) -> None:
    connection = secure_kafka.with_certificate
    assert await read(connection) == [*"abc"]
    without = {
        key: value for key, value in connection.items() if key[:8] not in ("ssl_cert", "ssl_keyf")
    }
    assert isinstance(await refusal(without), BrokerError)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_password_is_proven_and_a_wrong_one_is_refused(
    secure_kafka: SecureKafka, mechanism: str
) -> None:
    assert await read(secure_kafka.with_scram(mechanism)) == [*"abc"]
    error = await refusal(secure_kafka.with_scram(mechanism, "hunter2"))
    assert isinstance(error, BrokerRefused)
    assert "hunter2" not in str(error)
    assert "sasl_plain_password" in str(error)


async def test_a_user_without_rights_is_told_which_ones_are_needed(
    secure_kafka: SecureKafka,
) -> None:
    error = await refusal(secure_kafka.with_scram("SCRAM-SHA-256", user=STRANGER))
    assert isinstance(error, BrokerRefused)
    assert "the Kafka user needs Read and Describe on the topic" in str(error)


async def test_one_topic_of_a_pattern_that_may_only_be_looked_at_is_named(
    secure_kafka: SecureKafka,
) -> None:
    """The error must name the topic and give advice, instead of `unhandled errors in a TaskGroup`."""
    prefix = f"p-{uuid.uuid4().hex[:6]}"
    for name in ("open", "closed"):
        secure_kafka.create_topic(f"{prefix}-{name}")
    secure_kafka.allow(AclOperation.READ, ResourceType.TOPIC, f"{prefix}-open")
    secure_kafka.allow(AclOperation.DESCRIBE, ResourceType.TOPIC, f"{prefix}-closed")
    secure_kafka.allow(AclOperation.READ, ResourceType.GROUP, prefix)
    connection = secure_kafka.with_scram("SCRAM-SHA-256", user=STRANGER)
    servers = connection.pop("bootstrap_servers")
    async with driving(producer_on(servers, f"^{prefix}-.*", prefix, **connection)) as driver:
        error = await driver.until_failed()
    assert isinstance(error, BrokerRefused)
    assert f"commit of {prefix}-closed[0]" in str(error)
    assert "the Kafka user needs Read and Describe on the topic" in str(error)


async def test_a_password_may_be_sent(secure_kafka: SecureKafka) -> None:
    assert await read(secure_kafka.with_plain) == [*"abc"]


async def test_connections_that_the_broker_ends_for_their_age_cost_no_message(
    secure_kafka: SecureKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Cloud services require clients to log in again regularly (`connections.max.reauth.ms`)."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    secure_kafka.create_topic(topic)
    connection = secure_kafka.with_plain
    servers = connection.pop("bootstrap_servers")
    sent: list[str] = []
    with caplog.at_level("ERROR", "aiokafka"), anyio.fail_after(60):
        async with driving(producer_on(servers, topic, topic, **connection)) as driver:
            while caplog.text.count("closed") < 3:
                sent.append(str(len(sent)))
                await asyncio.to_thread(secure_kafka.produce, topic, sent[-1:])
                await driver.settled(len(sent))
                await asyncio.sleep(0.2)
            assert driver.error is None
            assert driver.values == sent


async def test_a_configured_token_is_shown_and_one_that_is_over_is_refused(
    secure_kafka: SecureKafka,
) -> None:
    assert await read(secure_kafka.with_token(sasl_oauth_token=make_token())) == [*"abc"]
    error = await refusal(secure_kafka.with_token(sasl_oauth_token=make_token(life_s=-100)))
    assert isinstance(error, BrokerRefused)
    assert "sasl_oauth_token expired at" in str(error)


class TokenEndpoint:
    """An endpoint that gives out tokens, and records the login and the form of each request."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.life_s = 300.0
        self.status = 200
        self.raw: bytes | None = None
        """The answer to each request, as bytes; None: a proper answer."""
        endpoint = self

        class Handler(JsonHandler):
            def respond(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                login = b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                endpoint.asked.append((login, form))
                if endpoint.raw is not None:
                    self.wfile.write(endpoint.raw)
                    self.close_connection = True
                    return
                token = {"access_token": make_token(), "expires_in": endpoint.life_s}
                self.answer(token, endpoint.status)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/token"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    endpoint = TokenEndpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield endpoint
    finally:
        endpoint.server.shutdown()
        thread.join()
        endpoint.server.server_close()


def by_endpoint(secure_kafka: SecureKafka, endpoint: TokenEndpoint) -> dict[str, Any]:
    return secure_kafka.with_token(
        sasl_oauth_token_endpoint_url=endpoint.url, sasl_oauth_client_id="the client",
        sasl_oauth_client_secret="s3:cret", sasl_oauth_scope="kafka",
    )  # fmt: skip


async def test_tokens_come_from_an_endpoint_and_each_serves_as_long_as_it_lives(
    secure_kafka: SecureKafka, endpoint: TokenEndpoint
) -> None:
    assert await read(by_endpoint(secure_kafka, endpoint)) == [*"abc"]
    login, form = endpoint.asked[0]
    assert login == "the%20client:s3%3Acret"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    # The group's consumer asked for one token, and the reader outside of the group for another.
    assert len(endpoint.asked) == 2


async def test_an_endpoint_that_refuses_is_named_without_the_secret(
    secure_kafka: SecureKafka, endpoint: TokenEndpoint
) -> None:
    endpoint.status = 401
    error = await refusal(by_endpoint(secure_kafka, endpoint))
    assert isinstance(error, BrokerError)
    assert "s3" not in str(error)
    assert endpoint.url in str(error)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", sdk.KafkaConnectionError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", sdk.KafkaConnectionError),
        (
            b'HTTP/1.1 200 OK\r\n\r\n{"access_token": "a", "expires_in": 1' + 400 * b"0" + b"}",
            sdk.AuthenticationFailedError,
        ),
    ],
)
async def test_an_endpoint_whose_answer_makes_no_sense_is_named(
    endpoint: TokenEndpoint, raw: bytes, kind: type[Exception]
) -> None:
    endpoint.raw = raw
    tokens = EndpointTokens(endpoint.url, "me", "secret", scope=None, context=None)
    with pytest.raises(kind, match=endpoint.url):
        await tokens.token()
