"""A trigger that promises less than its watchers ask for does not start, and is shown with the reason."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from tests.hosting.test_host import CLASSES, declare, eventually, hosting, watchers
from tests.store.seeding import until
from tests.unit.streams.streams import Acking, Upstream
from triggerer.abc import DeliveryFacts
from triggerer.errors import BrokerUnavailable
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Trigger


class Described(Acking):
    """Returns the facts that the test has set, or raises the error that the test has set."""

    facts: DeliveryFacts | Exception

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        assert ask
        if isinstance(self.facts, Exception):
            raise self.facts
        return self.facts


STRONG = DeliveryFacts(is_acknowledged=True, because="deleted last", key="the id")
WEAK = DeliveryFacts(is_acknowledged=True, because="deleted last")


@pytest.fixture(autouse=True)
def _described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSES, "Described", Described)


async def ask_for(database: Database, guarantee: str, classpath: str = "Described") -> None:
    async with database.transaction() as session:
        await session.execute(
            update(Trigger).where(Trigger.classpath == classpath).values(guarantee=guarantee)
        )


async def shown(database: Database, name: str, state: str, error: str | None) -> None:
    async def is_so() -> bool:
        found = (await watchers(database))[name]
        return found[0] == state and (
            found[1] == error if error is None else error in (found[1] or "")
        )

    await eventually(is_so)


async def test_one_that_promises_enough_is_hosted(database: Database, upstream: Upstream) -> None:
    Described.facts = STRONG
    await declare(database, "one", upstream, classpath="Described")
    await ask_for(database, "effectively_once")
    async with hosting(database):
        upstream.put(1)
        await until(lambda: bool(upstream.outcomes()))
        await shown(database, "one", "running", None)


async def test_one_that_promises_too_little_is_failing_and_its_sibling_runs(
    database: Database, upstream: Upstream
) -> None:
    Described.facts = WEAK
    await declare(database, "strict", upstream, classpath="Described")
    await declare(database, "fine", upstream)
    await ask_for(database, "effectively_once")
    async with hosting(database):
        await shown(
            database, "strict", "failing", "it asks for effectively once, and its trigger promises"
        )
        await shown(database, "fine", "running", None)
        # Once the facts are strong enough, the trigger starts without a restart.
        Described.facts = STRONG
        await shown(database, "strict", "running", None)


async def test_a_source_that_cannot_be_asked_keeps_it_from_starting_until_it_can(
    database: Database, upstream: Upstream
) -> None:
    Described.facts = BrokerUnavailable("nobody at q:1")
    await declare(database, "one", upstream, classpath="Described")
    await ask_for(database, "at_least_once")
    async with hosting(database):
        await shown(database, "one", "failing", "nobody at q:1")
        Described.facts = WEAK
        await shown(database, "one", "running", None)


class Unasked(Acking):
    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        raise AssertionError("nothing was asked for")


async def test_where_nothing_is_asked_for_nobody_is_asked(
    database: Database, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLASSES, "Unasked", Unasked)
    await declare(database, "one", upstream, classpath="Unasked")
    async with hosting(database):
        await shown(database, "one", "running", None)
