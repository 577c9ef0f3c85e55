"""The consumer lag of watchers: one call of `measure_lag` for each stream. A failed call leaves the lag unknown."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from triggerer.abc import BaseEventTrigger, SourceLag
from triggerer.errors import BrokerRefused
from triggerer.operations import consumer_lag as lags
from triggerer.operations.consumer_lag import Asked, measure_lags

ASKED: list[str] = []


class Source(BaseEventTrigger):
    def __init__(self, name: str) -> None:
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Source", {"name": self.name}

    async def measure_lag(self) -> SourceLag | None:
        ASKED.append(self.name)
        if self.name == "refused":
            raise BrokerRefused("there is no queue 'orders'")
        if self.name == "broken":
            raise ZeroDivisionError("division by zero")
        if self.name == "slow":
            await anyio.sleep_forever()
        return None if self.name == "silent" else SourceLag(3, {"a": 1, "b": 2})


@pytest.fixture(autouse=True)
def _loads(monkeypatch: pytest.MonkeyPatch) -> None:
    ASKED.clear()
    monkeypatch.setattr(lags, "load_trigger_class", lambda classpath, **_: Source)


async def measured(*names: str, within: timedelta = timedelta(seconds=30)) -> dict[str, SourceLag]:
    triggers = [Asked(f"stream of {name}", "tests.Source", {"name": name}) for name in names]
    return await measure_lags(triggers, dags_folder=Path("/nowhere"), deadline=within)


async def test_each_stream_is_asked_once() -> None:
    found = await measured("orders", "orders", "returns")
    assert found["stream of orders"] == SourceLag(3, {"a": 1, "b": 2})
    assert sorted(ASKED) == ["orders", "returns"]


async def test_one_that_fails_is_unknown_with_its_reason_and_the_others_are_not() -> None:
    found = await measured("refused", "broken", "silent", "orders")
    assert found["stream of refused"] == SourceLag(None, note="there is no queue 'orders'")
    assert found["stream of broken"].messages is None
    assert "division by zero" in (found["stream of broken"].note or "")
    assert found["stream of silent"].note == "this kind of source does not report its lag"
    assert found["stream of orders"].messages == 3


async def test_one_that_does_not_answer_in_time_is_unknown() -> None:
    found = await measured("slow", "orders", within=timedelta(seconds=0.2))
    assert found["stream of slow"].note == "its source did not answer within 0.2 s"
    assert found["stream of orders"].messages == 3
