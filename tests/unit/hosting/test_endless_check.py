"""A trigger whose `describe_delivery` does not end cannot start. Its stream starts without it."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import timedelta
from typing import Any

import anyio
import pytest

from triggerer.abc import BaseEventTrigger, DeliveryFacts
from triggerer.domain.events import WatcherRef
from triggerer.domain.watchers.guarantees import Guarantee
from triggerer.errors import PluginError
from triggerer.hosting.class_loader import ClassLoader
from triggerer.hosting.guarantee_check import GuaranteeCheck
from triggerer.store.watchers.hosting import TriggerRow


class Endless(BaseEventTrigger):
    """Its `describe_delivery` ignores cancellations until the test sets `may_end`."""

    def __init__(self, may_end: anyio.Event, asked: list[BaseEventTrigger]) -> None:
        self._may_end = may_end
        self._asked = asked

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Endless", {}

    def shared_stream_key(self) -> Hashable:
        return None

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        self._asked.append(self)
        # A call in a thread ignores a cancellation in this way, too.
        with anyio.CancelScope(shield=True):
            await self._may_end.wait()
        return DeliveryFacts(is_acknowledged=True, because="deleted last")


async def test_a_check_that_ignores_its_cancellation_is_given_up_and_not_begun_twice() -> None:
    may_end = anyio.Event()
    asked: list[BaseEventTrigger] = []
    kwargs = {"may_end": may_end, "asked": asked}
    row = TriggerRow(1, "Endless", kwargs, "digest", (WatcherRef(1, 0),), ("a/w",))
    loader = ClassLoader(
        lambda _: Endless,
        patience=timedelta(seconds=60),
        start=lambda perform, end: end(perform()),
    )
    async with anyio.create_task_group() as tasks:
        check = GuaranteeCheck(
            tasks,
            loader,
            ack_timeout=timedelta(minutes=5),
            patience=timedelta(seconds=0.05),
        )
        try:
            load = check.begin(row, Guarantee.AT_LEAST_ONCE)
            # A caller that waits for any load of the factory learns of the end, too.
            with anyio.fail_after(20):
                while not load.is_settled:
                    await loader.settled.wait()
            with pytest.raises(PluginError, match=r"Endless has not ended within 0.05 s"):
                load.result()
            assert check.begin(row, Guarantee.AT_LEAST_ONCE) is load
            assert len(asked) == 1
        finally:
            may_end.set()
        with anyio.fail_after(20):
            await loader.settled.wait()
            patient = GuaranteeCheck(
                tasks, loader, ack_timeout=timedelta(minutes=5), patience=timedelta(seconds=60)
            )
            again = patient.begin(row, Guarantee.AT_LEAST_ONCE)
            assert again is not load
            await again.wait_until_settled()
        assert again.result() is Endless
