"""Sequences of events fetch, by page, only the events that are used."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.errors import StoreUnavailable
from triggerer.worker.events.mappings import InletEvents, TriggeringAssetEvents
from triggerer.worker.events.sequences import AssetEvents
from triggerer.worker.protocol import PAGE_SIZE


class FakeExecutor:
    """Answers queries for events as the executor does, and records them. The event at index n has the id n + 1.

    Args:
        kept: The number of events that were not deleted.
        at_once: The highest number of events in a page.
    """

    def __init__(self, total: int, *, kept: int | None = None, at_once: int = PAGE_SIZE) -> None:
        self.total = total
        self.kept = total if kept is None else kept
        self.at_once = at_once
        self.counts = 0
        self.pages: list[tuple[int, int]] = []
        """(id of the first event, number of events) of each page, in order."""
        self.skipped = 0

    def __call__(self, what: str, **fields: Any) -> Any:
        match what:
            case "triggering":
                return [{"name": "in", "uri": "x-in", "total": self.total, "last_id": self.total}]
            case "inlet":
                return self.total
            case "inlet_count":
                assert fields["last_id"] == self.total
                self.counts += 1
                return self.total
        return self.page(**fields["page"])

    def page(
        self, *, last_id: int, newest_first: bool, beyond: int | None, skip: int, limit: int
    ) -> list[dict[str, Any]]:
        assert last_id == self.total
        assert 0 < limit <= PAGE_SIZE
        ids = range(1, self.kept + 1)
        if newest_first:
            ids = ids[::-1] if beyond is None else ids[: beyond - 1][::-1]
        elif beyond is not None:
            ids = ids[beyond:]
        ids = ids[skip : skip + min(limit, self.at_once)]
        self.skipped += skip
        self.pages.append((ids[0] if ids else 0, len(ids)))
        return [_row(one) for one in ids]


def _row(id_: int) -> dict[str, Any]:
    return {
        "id": id_,
        "asset_name": "in",
        "asset_uri": "x-in",
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
        "source_watcher": "w",
        "source_dag": "d",
        "source_run_id": "r",
        "source_task": "t",
        "partition_key": "2026-01-01",
        "extra": {"n": id_ - 1},
    }


def inlet(executor: FakeExecutor) -> AssetEvents:
    return InletEvents(executor, [Asset("x-in")])["x-in"]


LONG = 1_000_000


@pytest.mark.parametrize(
    ("look", "ids", "pages"),
    [
        (lambda events: events[-1], [LONG], [(LONG, 1)]),
        (lambda events: events[-3], [LONG - 2], [(LONG - 2, 1)]),
        (lambda events: events[0], [1], [(1, 1)]),
        (lambda events: events[-1:], [LONG], [(LONG, 1)]),
        (lambda events: events[-3:], [LONG - 2, LONG - 1, LONG], [(LONG, 3)]),
        (lambda events: events[-4:-2], [LONG - 3, LONG - 2], [(LONG - 2, 2)]),
        (lambda events: events[:3], [1, 2, 3], [(1, 3)]),
        (lambda events: events[5:9:2], [6, 8], [(6, 4)]),
        (lambda events: next(reversed(events)), [LONG], [(LONG, PAGE_SIZE)]),
        (lambda events: next(iter(events)), [1], [(1, PAGE_SIZE)]),
        (bool, [], []),
    ],
)
def test_looking_at_an_end_fetches_what_is_looked_at_and_counts_nothing(
    look: Callable[[AssetEvents], Any], ids: list[int], pages: list[tuple[int, int]]
) -> None:
    executor = FakeExecutor(LONG)
    found = look(inlet(executor))
    if found is not True:
        assert [event.id for event in (found if isinstance(found, list) else [found])] == ids
    assert executor.pages == pages
    assert (executor.counts, executor.skipped < 10) == (0, True)


def test_the_length_is_counted_once_and_fetches_nothing() -> None:
    executor = FakeExecutor(LONG)
    events = inlet(executor)
    assert (len(events), len(events), executor.counts, executor.pages) == (LONG, LONG, 1, [])
    # The length is known, so the nearer end is used.
    assert events[LONG - 2].id == LONG - 1
    assert [event.id for event in events[LONG - 2 :]] == [LONG - 1, LONG]
    assert executor.skipped == 1


@given(
    total=st.integers(0, 12),
    at_once=st.integers(1, 5),
    counted=st.booleans(),
    index=st.slices(12) | st.integers(-14, 14),
    again=st.slices(12) | st.integers(-14, 14),
)
def test_indices_and_slices_are_those_of_a_list(
    total: int, at_once: int, counted: bool, index: Any, again: Any
) -> None:
    events = inlet(FakeExecutor(total, at_once=at_once))
    ids = list(range(1, total + 1))
    if counted:
        assert len(events) == total
    for wanted in (index, again):
        try:
            expected = ids[wanted]
        except IndexError:
            with pytest.raises(IndexError):
                events[wanted]
            continue
        found = events[wanted]
        assert ([one.id for one in found] if isinstance(found, list) else found.id) == expected, (
            wanted
        )
    assert [event.id for event in events] == ids
    assert [event.id for event in reversed(events)] == ids[::-1]
    assert bool(events) == bool(ids)


def test_a_slice_without_a_step_is_refused_as_a_list_refuses_it() -> None:
    with pytest.raises(ValueError, match="zero"):
        inlet(FakeExecutor(3))[0:2:0]


def test_iterating_gives_all_in_order_and_fetches_each_page_once_beyond_the_one_before() -> None:
    executor = FakeExecutor(2 * PAGE_SIZE + 1)
    events = TriggeringAssetEvents(executor)[Asset("x-in", name="in")]
    assert [event.id for event in events] == list(range(1, 2 * PAGE_SIZE + 2))
    assert executor.pages == [(1, PAGE_SIZE), (PAGE_SIZE + 1, PAGE_SIZE), (2 * PAGE_SIZE + 1, 1)]
    assert executor.skipped == 0


def test_a_loop_over_indices_fetches_ever_larger_pages_and_skips_nothing() -> None:
    executor = FakeExecutor(3 * PAGE_SIZE)
    events = TriggeringAssetEvents(executor)["x-in"]
    assert [events[-1 - i].id for i in range(len(events))] == list(range(3 * PAGE_SIZE, 0, -1))
    assert len(executor.pages) < 20
    assert executor.skipped == 0


def test_large_events_come_by_smaller_pages() -> None:
    executor = FakeExecutor(10, at_once=4)
    assert [event.id for event in inlet(executor)] == list(range(1, 11))
    assert executor.pages == [(1, 4), (5, 4), (9, 2)]


def test_a_long_sequence_does_not_stay_in_memory() -> None:
    executor = FakeExecutor(20 * PAGE_SIZE)
    events = TriggeringAssetEvents(executor)["in"]
    for _ in range(2):
        for _page in events.pages():
            pass
    assert executor.pages.count((1, PAGE_SIZE)) == 2
    assert list(events)[-1].id == 20 * PAGE_SIZE


def test_an_index_beyond_the_end_is_an_error_and_so_are_events_that_went_away() -> None:
    events = TriggeringAssetEvents(FakeExecutor(3, kept=2))["x-in"]
    for index in (3, -4):
        with pytest.raises(IndexError):
            events[index]
    with pytest.raises(LookupError, match="deleted"):
        list(events)
    with pytest.raises(LookupError, match="deleted"):
        events[1:]


def test_triggering_events_are_asked_for_again_where_the_answer_was_an_error() -> None:
    executor = FakeExecutor(2)
    answers = iter([StoreUnavailable("away"), None])

    def query(what: str, **fields: Any) -> Any:
        if what == "triggering" and (error := next(answers)):
            raise error
        return executor(what, **fields)

    mapping = TriggeringAssetEvents(query)
    with pytest.raises(StoreUnavailable):
        len(mapping)
    assert len(mapping) == 1


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
    assert inlets["x-in"][-1].id == 5
    assert [event.id for event in inlets[AssetAlias("some")][1:3]] == [2, 3]
    assert len(inlets) == 2
    with pytest.raises(KeyError, match="inlets"):
        inlets["x-other"]


def _uris(monkeypatch: pytest.MonkeyPatch, *uris: str) -> list[str]:
    """Return the result of `uris()` for one event per URI."""
    ordinary = FakeExecutor.page

    def page(self: FakeExecutor, **arguments: Any) -> list[dict[str, Any]]:
        rows = ordinary(self, **arguments)
        return [{**row, "extra": {"uri": uris[row["id"] - 1]}} for row in rows]

    monkeypatch.setattr(FakeExecutor, "page", page)
    return TriggeringAssetEvents(FakeExecutor(len(uris)))["in"].uris()


def test_uris_name_each_object_once_in_the_order_of_the_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _uris(monkeypatch, "s3://b/1", "s3://b/2", "s3://b/1")
    assert found == ["s3://b/1", "s3://b/2"]


def test_characters_that_spark_takes_for_a_pattern_are_escaped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = _uris(
        monkeypatch, "s3://b/r [1].json", r"gs://b/{x}*?\y", "https://b/x?y=[1]", "s3://b/%3F#ü"
    )
    assert found == [
        r"s3://b/r \[1\].json",
        r"gs://b/\{x\}\*\?\\y",
        "https://b/x?y=[1]",
        "s3://b/%3F#ü",
    ]


def test_an_event_without_a_uri_is_named_and_not_left_out() -> None:
    with pytest.raises(ValueError, match="asset event 1 has no text `uri`"):
        TriggeringAssetEvents(FakeExecutor(3))["in"].uris()
