"""The producer's errors and retries if Service Bus is unreachable, refuses a request, or contradicts the settings."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import anyio
import pytest
from azure.core.credentials import AccessToken
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from producers.servicebus import check_entity, describe_delivery
from producers.servicebus.entity import EntityPath
from producers.servicebus.errors import translate
from producers.servicebus.sdk import client as sdk
from tests.brokers.servicebus.conftest import MakeQueue, Queue
from tests.brokers.servicebus.driving import drive, producer_on, settings_for
from tests.services.brokers.servicebus import ServiceBusServer, open_servicebus
from tests.services.brokers.servicebus.service import connection_string
from tests.services.tcp_proxy import TcpProxy
from triggerer.abc import AdvanceOutcome
from triggerer.errors import BrokerError, BrokerRefused, BrokerUnavailable, ConfigurationError
from triggerer.testing.conformance.driver import ACKED, FAILED, REJECTED, Delivery, Driver
from triggerer.testing.conformance.resolutions import acked, gated, outcomes


async def error_of(driver: Driver) -> Exception:
    """Return the error that ends the stream."""
    try:
        with anyio.fail_after(30):
            while True:
                await driver.stay_quiet(0.05)
    except BrokerError as error:
        return error


async def test_a_network_that_goes_and_comes_back_loses_nothing(
    make_queue: MakeQueue, proxy: TcpProxy
) -> None:
    queue = make_queue(lock_s=30.0)
    queue.send("a", "b")
    async with drive(queue.producer(), gated(gate := [False])) as driver:
        await driver.count(2)
        proxy.refuse()
        gate[0] = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(driver.advance)
            await anyio.sleep(1.0)
            assert driver.advanced == []
            proxy.heal()
        assert queue.values == []
        await asyncio.to_thread(queue.send, "c")
        await driver.until(lambda: "c" in acked(driver), "it goes on")
        assert driver.values == ["a", "b", "c"]


@pytest.mark.parametrize("requires_session", [False, True], ids=["queue", "sessions"])
async def test_a_service_that_is_restarted_ends_no_stream_and_loses_and_repeats_nothing(
    requires_session: bool,
) -> None:
    with open_servicebus(durable=True) as server:
        path = server.create("restarted", requires_session=requires_session, lock_s=5.0)
        gate = [True]

        def send(name: str) -> None:
            for session in ("x", "y"):
                values = [f"{name}-{session}{number}" for number in range(10)]
                server.send(path, values, session_id=session if requires_session else None)

        async with drive(producer_on(server, path), gated(gate)) as driver:
            await asyncio.to_thread(send, "settled")
            await driver.advanced_count(20)
            gate[0] = False
            await asyncio.to_thread(send, "open")
            await driver.count(40)
            for name in ("first", "second"):
                await asyncio.to_thread(server.restart)
                await asyncio.to_thread(send, name)
            gate[0] = True
            await driver.advance()
            await driver.until(lambda: len(acked(driver)) == 80, "all are advanced")
            await driver.until(lambda: server.values(path) == [], "all are settled")
        # Messages that come again keep their keys, so the store recognises them.
        assert len({(one.value, one.key) for one in driver.deliveries}) == 80
        assert len({one.key for one in driver.deliveries}) == 80
        assert server.dead_letters(path) == []
        if requires_session:
            for session in ("x", "y"):
                clean = dict.fromkeys(
                    value for value, outcome in outcomes(driver) if outcome.is_clean
                )
                firsts = [one for one in clean if f"-{session}" in one]
                assert firsts == [
                    f"{name}-{session}{number}"
                    for name in ("settled", "open", "first", "second")
                    for number in range(10)
                ]


async def test_a_connection_that_breaks_after_long_health_is_made_again(queue: Queue) -> None:
    """The connection breaks after more than `connect_timeout_s`. The timeout must count from the break."""
    async with drive(queue.producer(connect_timeout_s=0.8)) as driver:
        await driver.stay_quiet(2.0)
        queue.order("cut")
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)


async def test_a_network_that_is_silent_is_noticed(queue: Queue, proxy: TcpProxy) -> None:
    """Nothing arrives, and the connection is not reset."""
    async with drive(queue.producer(idle_timeout_s=1.0, request_timeout_s=1.0)) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        proxy.silence()
        await asyncio.to_thread(queue.send, "b")
        await anyio.sleep(4.0)
        proxy.heal()
        await driver.until(lambda: "b" in acked(driver), "it comes on another connection")


@pytest.mark.rule("a watcher works for half an hour and then silently stops")
async def test_a_service_that_stays_away_ends_the_stream_with_an_error_that_names_it(
    queue: Queue, proxy: TcpProxy
) -> None:
    async with drive(queue.producer(connect_timeout_s=1.0)) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        proxy.refuse()
        error = await error_of(driver)
    assert isinstance(error, BrokerUnavailable)
    assert f"stream of queue '{queue.path}' at 127.0.0.1:{proxy.port}" in str(error)
    assert "port 5671" in (error.hint or "")


async def test_a_wake_of_reconnects_has_growing_distances(queue: Queue, proxy: TcpProxy) -> None:
    async with drive(queue.producer(connect_timeout_s=60.0)) as driver:
        await asyncio.to_thread(queue.send, "a")
        await driver.advanced_count(1)
        proxy.refuse()
        await driver.stay_quiet(4.0)
        assert proxy.connections < 12
        proxy.heal()
        await asyncio.to_thread(queue.send, "b")
        await driver.until(lambda: "b" in acked(driver), "it goes on")


async def test_nobody_there_at_the_start_is_an_error_that_says_where_it_looked(
    servicebus_server: ServiceBusServer,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening: refused at once
        port = taken.getsockname()[1]
        # `connect_timeout_s` bounds only reconnecting. If the first connection fails, the stream must end at once, so
        # that its watchers are not shown as running.
        producer = producer_on(
            servicebus_server, "any", connection_string=connection_string(port),
            connect_timeout_s=3600.0,
        )  # fmt: skip
        async with drive(producer) as driver:
            error = await error_of(driver)
    assert isinstance(error, BrokerUnavailable)
    assert f"127.0.0.1:{port}" in str(error)
    assert "is the namespace's name right" in str(error)


async def test_an_unknown_entity_is_refused_with_the_way_to_create_it(
    servicebus_server: ServiceBusServer,
) -> None:
    started = time.monotonic()
    async with drive(producer_on(servicebus_server, "no-such-queue")) as driver:
        error = await error_of(driver)
    assert isinstance(error, BrokerRefused)
    assert "there is no queue 'no-such-queue'" in str(error)
    assert "az servicebus queue create" in str(error)
    assert time.monotonic() - started < 10
    async with drive(producer_on(servicebus_server, "no-such-topic", "all")) as driver:
        error = await error_of(driver)
    assert "there is no subscription 'all' of topic 'no-such-topic'" in str(error)
    assert "--topic-name no-such-topic -n all" in str(error)


async def test_a_wrong_key_is_refused_and_not_shown(queue: Queue) -> None:
    wrong = connection_string(queue.port, key="a-wrong-key=")
    async with drive(queue.producer(connection_string=wrong)) as driver:
        error = await error_of(driver)
    assert isinstance(error, BrokerRefused)
    assert "InvalidSignature" in str(error)
    assert "check the key in connection_string" in str(error)
    assert "a-wrong-key" not in str(error)


async def test_a_connection_string_of_one_entity_reads_that_one(queue: Queue) -> None:
    """The portal's string contains the entity's name. The service ignores the name's case, the SDK does not."""
    of_it = f"{queue.server.connection_string};EntityPath={queue.path.upper()}"
    queue.send("a")
    async with drive(queue.producer(connection_string=of_it)) as driver:
        await driver.until(lambda: not queue.values, "it is completed")
    assert driver.values == ["a"]

    of_another = settings_for(f"{queue.server.connection_string};EntityPath=other")
    with pytest.raises(ConfigurationError, match=r"is for 'other' alone .EntityPath.") as error:
        await check_entity(of_another, EntityPath(queue.path))
    assert "its own connection" in str(error.value)
    with pytest.raises(ConfigurationError, match="is for 'other' alone"):
        async with drive(
            queue.producer(connection_string=f"{queue.server.connection_string};EntityPath=other")
        ) as driver:
            await driver.count(1)


@pytest.mark.parametrize(
    ("said", "kind", "hint"),
    [
        (
            "Cannot create a message receiver on an entity with auto-forwarding enabled.",
            BrokerRefused,
            "read the entity to which it forwards",
        ),
        ("This is not possible here.", BrokerUnavailable, None),
    ],
)
def test_what_the_service_does_not_allow_is_no_matter_of_the_network(
    said: str, kind: type[BrokerError], hint: str | None
) -> None:
    error = ServiceBusError(f"{said} Error condition: amqp:not-allowed.")
    translated = translate(error, "stream of queue 'orders' at x", EntityPath("orders"))
    assert type(translated) is kind
    assert translated.hint == hint
    assert said in str(translated)


async def test_an_entity_is_not_the_place_for_its_own_dead_letters(queue: Queue) -> None:
    itself = settings_for(queue.server.connection_string, dead_letter_queue=queue.path.upper())
    with pytest.raises(ConfigurationError, match=r"which is read .*come again at once"):
        await check_entity(itself, EntityPath(queue.path))


async def test_a_dead_letter_queue_can_be_read_and_has_no_place_for_dead_letters_of_its_own(
    queue: Queue,
) -> None:
    """From a dead-letter queue, the producer deletes a rejected message, and redelivers a failed message without a
    limit."""
    queue.send(*"abc")
    async with drive(queue.producer(), lambda _: REJECTED) as driver:
        await driver.until(lambda: not queue.values, "all are dead letters")
    assert len(queue.server.dead_letters(queue.path)) == 3
    dead = producer_on(queue.server, f"{queue.path}/$DeadLetterQueue", max_deliveries=2)
    failures = iter([FAILED] * 4)

    def resolve(delivery: Delivery) -> AdvanceOutcome:
        match delivery.value:
            case "a":
                return REJECTED
            case "b":
                return next(failures, ACKED)
        return ACKED

    async with drive(dead, resolve) as driver:
        await driver.until(lambda: not queue.server.dead_letters(queue.path), "all are read")
    assert sorted(driver.values) == ["a", "b", "b", "b", "b", "b", "c"]
    settings = settings_for(queue.server.connection_string, max_deliveries=2)
    facts = await describe_delivery(
        settings, EntityPath(f"{queue.path}/$DeadLetterQueue"), ask=False
    )
    assert (facts.has_dead_letters, facts.drops_after) == (False, None)


async def test_no_right_to_listen_is_refused_with_the_role_that_is_needed(queue: Queue) -> None:
    queue.server.order("tokens", denied=[queue.path])
    async with drive(queue.producer()) as driver:
        error = await error_of(driver)
    assert isinstance(error, BrokerRefused)
    assert "'Listen' claim(s) are required" in str(error)
    assert "Azure Service Bus Data Receiver" in str(error)


async def test_a_disabled_entity_is_refused(queue: Queue) -> None:
    queue.order("disable", disabled=True)
    async with drive(queue.producer()) as driver:
        error = await error_of(driver)
    assert isinstance(error, BrokerRefused)
    assert "enable the entity" in str(error)


class Identity:
    """A managed identity, with the methods that the SDK calls."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.asked = 0

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        self.asked += 1
        return AccessToken(self.token, int(time.time()) + 3600)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("known", [True, False])
async def test_a_managed_identity_signs_in(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    identity = Identity("a-token")

    def without_tls(namespace: str, credential: Any, **arguments: Any) -> ServiceBusClient:
        return ServiceBusClient(namespace, credential, use_tls=False, **arguments)

    monkeypatch.setattr(sdk, "default_credential", lambda _: identity)
    monkeypatch.setattr(sdk, "ServiceBusClient", without_tls)
    queue.server.order("tokens", jwts=["a-token"] if known else [])
    queue.send("a")
    producer = queue.producer(
        connection_string="none", fully_qualified_namespace=f"127.0.0.1:{queue.port}"
    )
    async with drive(producer) as driver:
        if known:
            await driver.advanced_count(1)
        else:
            error = await error_of(driver)
            assert isinstance(error, BrokerRefused)
            assert "InvalidToken" in str(error)
            assert "the identity" in str(error)
            assert "a-token" not in str(error)
    assert identity.asked >= 1


# triggerer check


async def test_a_check_finds_what_is_there_and_locks_nothing(
    make_queue: MakeQueue, servicebus_server: ServiceBusServer
) -> None:
    for requires_session in (False, True):
        queue = make_queue(requires_session=requires_session)
        queue.send("a", session="one" if requires_session else None)
        settings = settings_for(servicebus_server.connection_string)
        await check_entity(settings, EntityPath(queue.path))
        assert queue.locked == 0


async def test_a_check_says_what_is_not_there(servicebus_server: ServiceBusServer) -> None:
    settings = settings_for(servicebus_server.connection_string)
    with pytest.raises(BrokerRefused, match="there is no queue 'missing'"):
        await check_entity(settings, EntityPath("missing"))
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1:"):
        await check_entity(settings_for(connection_string(1)), EntityPath("orders"))


async def test_closing_a_stream_that_was_never_opened_is_fine(queue: Queue) -> None:
    await queue.producer().aclose()
