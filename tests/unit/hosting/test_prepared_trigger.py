"""Loads of one `PreparedTrigger`, which live delivery and catch-up begin independently."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from triggerer.abc import BaseEventTrigger, DeliveryFacts
from triggerer.domain.events import WatcherRef
from triggerer.hosting.class_loader import Loaded
from triggerer.hosting.factory import TriggerFactory
from triggerer.store.watchers.hosting import TriggerRow


class Acknowledged(BaseEventTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Acknowledged", {}

    def shared_stream_key(self) -> Hashable:
        return None

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        return DeliveryFacts(is_acknowledged=True, because="deleted last")


class Loads:
    """Starts the loads of a `TriggerFactory`, and ends them in order when the test says so."""

    def __init__(self) -> None:
        self._begun: deque[Callable[[Loaded], None]] = deque()

    def start(self, _: Callable[[], Loaded], end: Callable[[Loaded], None]) -> None:
        self._begun.append(end)

    def end(self, loaded: Loaded = Acknowledged) -> None:
        self._begun.popleft()(loaded)


def factory_with(loads: Loads) -> TriggerFactory:
    return TriggerFactory(lambda _: Acknowledged, start_load=loads.start)


def row(guarantee: str | None) -> TriggerRow:
    return TriggerRow(
        1, "Acknowledged", {}, "digest", (WatcherRef(1, 0),), ("a/w",), guarantee=guarantee
    )


@pytest.mark.parametrize("guarantee", [None, "at_least_once"])
async def test_a_trigger_is_made_from_the_last_load_that_has_ended(guarantee: str | None) -> None:
    loads = Loads()
    async with factory_with(loads) as factory:
        prepared = factory.prepare(row(guarantee))
        with pytest.raises(Exception, match="Acknowledged is being loaded"):
            prepared()
        await wait_all_tasks_blocked()
        loads.end()
        await prepared.class_load.wait_until_settled()
        first = prepared.load()
        await wait_all_tasks_blocked()
        loads.end()
        await first.wait_until_settled()
        # Another caller begins a load before the first caller makes its trigger.
        second = prepared.load()
        await wait_all_tasks_blocked()
        assert not second.is_settled
        assert isinstance(prepared(), Acknowledged)
        loads.end(ImportError("no such module"))
        await second.wait_until_settled()
        with pytest.raises(ImportError, match="no such module"):
            prepared()


@pytest.mark.parametrize("guarantee", [None, "at_least_once"])
async def test_callers_share_a_load_that_is_under_way(guarantee: str | None) -> None:
    loads = Loads()
    async with factory_with(loads) as factory:
        prepared = factory.prepare(row(guarantee))
        load = prepared.load()
        assert prepared.load() is prepared.class_load is load
        await wait_all_tasks_blocked()
        loads.end()
        await load.wait_until_settled()
        assert isinstance(prepared(), Acknowledged)
