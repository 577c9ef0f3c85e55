"""The lag of an entity that an operator sees, with a double of the management API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from producers.servicebus.entity import EntityPath
from producers.servicebus.lag import measure_lag
from tests.brokers.servicebus.driving import settings_for
from tests.services.brokers.servicebus.administration import (
    AdministrationDouble,
    open_administration,
)
from tests.services.brokers.servicebus.service import connection_string
from tests.services.process import free_ports
from triggerer.abc import SourceLag
from triggerer.errors import BrokerRefused, BrokerUnavailable


@pytest.fixture
async def double(tmp_path: Path) -> AsyncIterator[AdministrationDouble]:
    async with open_administration(tmp_path / "tls") as opened:
        yield opened


async def ask(
    double: AdministrationDouble, name: str, subscription: str | None = None
) -> SourceLag:
    settings = settings_for(double.connection_string)
    return await measure_lag(settings, EntityPath(name, subscription), verify=double.authority)


async def test_it_tells_the_active_messages_of_a_queue(double: AdministrationDouble) -> None:
    double.queues["orders"] = {"Active": 7, "DeadLetter": 2, "Scheduled": 0}
    assert await ask(double, "orders") == SourceLag(7)
    assert double.paths == ["orders"]
    assert double.tokens[0].startswith("SharedAccessSignature ")
    double.queues["orders"] = {"Active": 0, "DeadLetter": 2, "Scheduled": 3}
    assert await ask(double, "orders") == SourceLag(0, note="3 more are scheduled for later")


async def test_it_tells_the_active_messages_of_a_subscription(double: AdministrationDouble) -> None:
    double.subscriptions["orders/subscriptions/billing"] = {"Active": 4, "DeadLetter": 0}
    assert await ask(double, "orders", "billing") == SourceLag(4)


@pytest.mark.parametrize("subscription", [None, "billing"])
async def test_an_entity_that_is_not_there_is_refused(
    double: AdministrationDouble, subscription: str | None
) -> None:
    with pytest.raises(BrokerRefused, match=r"there is no .*'orders'") as refused:
        await ask(double, "orders", subscription)
    assert "az servicebus" in str(refused.value)


@pytest.mark.parametrize("status", [401, 403])
async def test_who_may_only_read_is_told_which_right_is_missing(
    double: AdministrationDouble, status: int
) -> None:
    double.status = status
    with pytest.raises(BrokerRefused, match=rf"not allowed \({status}\).*needs Manage") as refused:
        await ask(double, "orders")
    assert "secret" not in str(refused.value)
    assert len(double.paths) == 1


async def test_a_service_that_fails_or_is_away_is_unavailable(double: AdministrationDouble) -> None:
    double.status = 500
    with pytest.raises(BrokerUnavailable, match="Service Bus answered 500"):
        await ask(double, "orders")
    (double.port,) = free_ports(1)
    with pytest.raises(BrokerUnavailable, match=r"queue 'orders' at localhost.*port 443"):
        await ask(double, "orders")


async def test_of_the_emulator_it_is_unknown() -> None:
    found = await measure_lag(settings_for(connection_string(5672)), EntityPath("orders"))
    assert found.messages is None
    assert "emulator" in (found.note or "")
