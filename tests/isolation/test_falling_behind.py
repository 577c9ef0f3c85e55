"""A watcher whose filter runs in a thread or a process falls behind alone, and catches up (contract, rule 18)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.conftest import Isolate, is_here, until
from tests.isolation.test_rules import values
from tests.isolation.triggers import DeafOfALog, OfALog
from tests.unit.streams.streams import Upstream
from triggerer.isolation import Isolation
from triggerer.testing import InMemoryBroker, StreamHarness


@pytest.mark.rule(
    "18: while a watcher is behind, its siblings continue and the broker advances",
    "18: a watcher gets each message of its backlog once, in order, before any newer message",
)
@pytest.mark.parametrize("placement", ["thread", "process"], indirect=True)
async def test_one_that_raises_costs_its_sibling_nothing_and_gets_all_once_it_is_mended(
    isolation: Isolation, isolate: Isolate, placement: str, upstream: Upstream, tmp_path: Path
) -> None:
    broker = OfALog.brokers[upstream.name] = InMemoryBroker()
    async with isolation, StreamHarness(catch_up=True) as streams:
        sick = await streams.add(isolate(OfALog, upstream=upstream.name, notes=str(tmp_path)))
        well = await streams.add(DeafOfALog(upstream.name, str(tmp_path), "well"))
        words = ["1", "skip", "1", "raise until mended", *["1"] * 6]
        broker.publish(*enumerate(words))
        await until(lambda: values(well) == list(range(10)) and broker.committed() == 10)
        assert isinstance(sick.error, ValueError)
        assert sick.behind == {0: [broker.identity, 3]}
        assert values(sick) == [0, 2]
        (tmp_path / "mended").touch()
        await streams.restart(sick)
        backlog_reader = [0, *range(2, 10)]
        await until(lambda: values(sick) == backlog_reader and not sick.behind)
        broker.publish((10, "1"), (11, "1"))
        await until(lambda: values(sick) == [*backlog_reader, 10, 11] and broker.committed() == 12)
        assert all(is_here(placement, event.payload) for event in sick.events)
        assert well.error is None
