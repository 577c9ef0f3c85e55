"""The guarantees of entities, with a double of the management API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from producers.servicebus.checking import describe_delivery
from producers.servicebus.entity import EntityPath
from tests.brokers.servicebus.driving import settings_for
from tests.services.brokers.servicebus.administration import (
    AdministrationDouble,
    open_administration,
)
from tests.services.brokers.servicebus.service import connection_string
from tests.services.process import free_ports
from tests.services.silent import open_silent_server
from triggerer.abc import DeliveryFacts, Guarantee
from triggerer.domain.watchers.guarantees import guarantee_of

QUEUE = EntityPath("Orders")
BRIEF = {
    "LockDuration": "PT30S",
    "DefaultMessageTimeToLive": "PT1M",
    "DeadLetteringOnMessageExpiration": "false",
    "MaxDeliveryCount": "4",
}


@pytest.fixture
async def double(tmp_path: Path) -> AsyncIterator[AdministrationDouble]:
    async with open_administration(tmp_path / "tls") as opened:
        opened.queues["Orders"] = {"Active": 0}
        opened.settings["Orders"] = BRIEF
        yield opened


async def ask(double: AdministrationDouble, entity: EntityPath = QUEUE) -> DeliveryFacts:
    settings = settings_for(double.connection_string)
    return await describe_delivery(settings, entity, ask=True, verify=double.authority)


async def test_a_time_to_live_shorter_than_the_ack_timeout_is_warned_of(
    double: AdministrationDouble,
) -> None:
    facts = await ask(double)
    assert (facts.retention, facts.redelivers_after, facts.drops_after) == (
        timedelta(minutes=1),
        timedelta(seconds=30),
        4,
    )
    promised = guarantee_of(facts, ack_timeout=timedelta(minutes=5))
    assert promised.guarantee is Guarantee.EFFECTIVELY_ONCE
    (warning,) = map(str, promised.warnings)
    assert "keeps a message for 0:01:00" in warning


@pytest.mark.parametrize(
    "changes",
    [
        # With this duration, the longest of .NET, the service says that messages do not expire.
        {"DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S"},
        {"DeadLetteringOnMessageExpiration": "true"},
    ],
)
async def test_what_is_kept_for_ever_or_dead_lettered_is_no_warning(
    double: AdministrationDouble, changes: dict[str, str]
) -> None:
    double.settings["Orders"] = BRIEF | changes
    assert guarantee_of(await ask(double), ack_timeout=timedelta(minutes=5)).warnings == ()


async def test_a_subscription_is_asked_for_as_one(double: AdministrationDouble) -> None:
    double.subscriptions["orders/subscriptions/billing"] = {"Active": 0}
    double.settings["orders/subscriptions/billing"] = BRIEF
    facts = await ask(double, EntityPath("orders", "billing"))
    assert facts.drops_after == 4
    assert facts.source == "subscription 'billing' of topic 'orders' at localhost:" + str(
        double.port
    )


async def test_who_may_only_listen_or_cannot_reach_the_api_is_promised_the_same(
    double: AdministrationDouble,
) -> None:
    double.status = 401
    of_listener = await ask(double)
    (double.port,) = free_ports(1)
    away = await ask(double)
    for facts in (of_listener, away):
        promised = guarantee_of(facts, ack_timeout=timedelta(minutes=5))
        assert promised.guarantee is Guarantee.EFFECTIVELY_ONCE
        assert promised.warnings == ()
        assert facts.drops_after == 10


async def test_two_connections_to_one_entity_are_known_as_such() -> None:
    sources = set()
    for name in ("orders", "ORDERS"):
        settings = settings_for(connection_string(5672))
        facts = await describe_delivery(settings, EntityPath(name), ask=False)
        sources.add(facts.source)
    assert sources == {"queue 'orders' at 127.0.0.1:5672"}


async def test_an_api_that_does_not_answer_is_not_waited_for() -> None:
    async with open_silent_server() as port:
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=secret"
        with anyio.fail_after(4.5):
            facts = await describe_delivery(settings_for(text), QUEUE, ask=True)
    assert facts.retention is None
    assert facts.drops_after == 10
