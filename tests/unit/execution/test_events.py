"""Sequences of events fetch what is looked at, by page, and nothing else."""

from datetime import UTC, datetime
from typing import Any

import pytest

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.execution.events import InletEvents, TriggeringAssetEvents
from triggerer.execution.protocol import PAGE_SIZE


class FakeExecutor:
    """Answers as the executor would, and counts."""

    def __init__(self, total: int, *, kept: int | None = None) -> None:
        self.total = total
        self.kept = total if kept is None else kept
        self.pages: list[tuple[int, int]] = []

    def __call__(self, what: str, **fields: Any) -> Any:
        if what == "triggering":
            return [{"name": "in", "uri": "x-in", "total": self.total}]
        if what == "inlet":
            return {"total": self.total, "last_id": self.total}
        self.pages.append((fields["start"], fields["stop"]))
        return [_row(n) for n in range(fields["start"], min(fields["stop"], self.kept))]


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "asset_name": "in",
        "asset_uri": "x-in",
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
        "source_watcher": "w",
        "source_dag": "d",
        "source_run_id": "r",
        "source_task": "t",
        "extra": {"n": number},
    }


def test_only_the_page_that_is_looked_at_is_fetched() -> None:
    executor = FakeExecutor(3 * PAGE_SIZE + 5)
    events = TriggeringAssetEvents(executor)["x-in"]
    assert (len(events), executor.pages) == (3 * PAGE_SIZE + 5, [])
    assert events[-1].extra == {"n": 3 * PAGE_SIZE + 4}
    assert executor.pages == [(3 * PAGE_SIZE, 3 * PAGE_SIZE + 5)]
    assert [event.id for event in events[PAGE_SIZE - 1 : PAGE_SIZE + 1]] == [
        PAGE_SIZE - 1,
        PAGE_SIZE,
    ]
    assert executor.pages[1:] == [(0, PAGE_SIZE), (PAGE_SIZE, 2 * PAGE_SIZE)]


def test_iterating_gives_all_in_order_and_fetches_each_page_once() -> None:
    executor = FakeExecutor(2 * PAGE_SIZE + 1)
    events = TriggeringAssetEvents(executor)[Asset("x-in", name="in")]
    assert [event.id for event in events] == list(range(2 * PAGE_SIZE + 1))
    assert len(executor.pages) == 3


def test_a_long_sequence_does_not_stay_in_memory() -> None:
    executor = FakeExecutor(20 * PAGE_SIZE)
    events = TriggeringAssetEvents(executor)["in"]
    for _ in events.pages():
        pass
    assert events[0].id == 0
    assert executor.pages.count((0, PAGE_SIZE)) == 2


def test_an_index_beyond_the_end_is_an_error_and_so_are_events_that_went_away() -> None:
    events = TriggeringAssetEvents(FakeExecutor(3, kept=2))["x-in"]
    with pytest.raises(IndexError):
        events[3]
    with pytest.raises(LookupError, match="deleted"):
        events[0]


def test_triggering_events_are_found_by_asset_name_or_uri_and_empty_for_a_silent_asset() -> None:
    asset, silent = Asset("x-in", name="in"), Asset("x-silent")
    mapping = TriggeringAssetEvents(FakeExecutor(2), [asset, silent])
    assert mapping[asset] is mapping["in"] is mapping["x-in"]
    assert list(mapping) == [asset]
    assert (asset in mapping, "x-in" in mapping, silent in mapping) == (True, True, False)
    assert [len(events) for events in mapping.values()] == [2]
    assert list(mapping.items()) == [(asset, mapping[asset])]
    assert (len(mapping[silent]), bool(mapping[silent])) == (0, False)
    with pytest.raises(KeyError):
        mapping["x-unknown"]


def test_an_event_says_where_it_comes_from() -> None:
    event = TriggeringAssetEvents(FakeExecutor(1))["in"][0]
    assert event.source_dag_run is not None
    assert (event.source_dag_run.dag_id, event.source_dag_run.run_id) == ("d", "r")
    assert (event.source_task, event.source_watcher) == ("t", "w")
    assert event.asset == Asset("x-in", name="in")
    assert event.timestamp == datetime(2026, 1, 1, tzinfo=UTC)


def test_inlet_events_are_those_of_declared_inlets_only() -> None:
    inlets = InletEvents(FakeExecutor(5), [Asset("x-in"), AssetAlias("some")])
    assert inlets["x-in"][-1].id == 4
    assert [event.id for event in inlets[AssetAlias("some")][1:3]] == [1, 2]
    assert len(inlets) == 2
    with pytest.raises(KeyError, match="inlets"):
        inlets["x-other"]
