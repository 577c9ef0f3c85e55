"""A task's outlets, as the task sets them, become its events."""

import math

import pytest

from triggerer.domain.assets import Asset, AssetAlias, Metadata
from triggerer.errors import RowRefused
from triggerer.worker.events.outlets import OutletEvents

A, B = Asset("x-a"), Asset("x-b")
ALIAS, OTHER = AssetAlias("one"), AssetAlias("two")


def _told(outlets: OutletEvents) -> list[tuple[str, dict[str, object], int, tuple[str, ...]]]:
    return [(e.asset_uri, e.extra, e.ordinal, e.aliases) for e in outlets.emitted()]


def test_each_declared_asset_gets_one_event_and_an_alias_none_by_itself() -> None:
    assert _told(OutletEvents([A, ALIAS, B])) == [("x-a", {}, 0, ()), ("x-b", {}, 0, ())]


def test_metadata_adds_to_the_extra_or_goes_through_the_alias() -> None:
    outlets = OutletEvents([A, ALIAS])
    outlets[A].extra = {"k": 1}
    outlets.apply(Metadata(A, {"l": 2}))
    outlets.apply(Metadata(B, {"m": 3}, alias=ALIAS))
    assert _told(outlets) == [("x-a", {"k": 1, "l": 2}, 0, ()), ("x-b", {"m": 3}, 0, ("one",))]


def test_equal_events_through_several_aliases_are_one_and_different_ones_are_counted() -> None:
    outlets = OutletEvents([ALIAS, OTHER, A])
    outlets[ALIAS].add(B, {"n": 1})
    outlets[ALIAS].add(B, {"n": 1})
    outlets[OTHER].add(B, {"n": 1})
    outlets["two"].add(B, {"n": 2})
    outlets[OTHER].add(A)
    assert _told(outlets) == [
        ("x-a", {}, 0, ("two",)),
        ("x-b", {"n": 1}, 0, ("one", "two")),
        ("x-b", {"n": 2}, 1, ("two",)),
    ]


def test_an_undeclared_outlet_is_refused() -> None:
    outlets = OutletEvents([A])
    with pytest.raises(KeyError, match="outlets"):
        outlets[B]
    with pytest.raises(TypeError, match="no alias"):
        outlets[A].add(B)
    with pytest.raises(KeyError):
        outlets.apply(Metadata(B))


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"f": print}, "JSON"),
        ({"nul": "a\x00b"}, "NUL"),
        ({"a\x00b": 1}, "NUL"),
        ([1], "no mapping"),
        ({1: 2}, "JSON"),
        ({"surrogate": "\ud800"}, "JSON"),
        ({"price": math.nan}, "NaN at price"),
        ({"rows": [{"price": None}, {"price": -math.inf}]}, r"-Infinity at rows\[1\].price"),
        ({"n": 2**64}, "integer of more than 64 bits"),
    ],
)
def test_an_extra_that_no_store_keeps_is_refused_with_its_asset(extra: object, reason: str) -> None:
    outlets = OutletEvents([A])
    outlets[A].extra = extra  # type: ignore[assignment]
    with pytest.raises(RowRefused, match=f"x-a .*{reason}"):
        outlets.emitted()


def test_nan_is_refused_however_a_task_gives_it() -> None:
    given = {"price": math.nan}
    by_metadata, by_alias, by_both = OutletEvents([A]), OutletEvents([ALIAS]), OutletEvents([ALIAS])
    by_metadata.apply(Metadata(A, given))
    by_alias[ALIAS].add(A, {"price": None})
    by_alias[ALIAS].add(A, given)  # not the same as null
    by_both.apply(Metadata(A, given, alias=ALIAS))
    for outlets in (by_metadata, by_alias, by_both):
        with pytest.raises(RowRefused, match="the extra of x-a has NaN at price"):
            outlets.emitted()


def test_text_that_only_looks_like_a_nul_is_kept() -> None:
    outlets = OutletEvents([A])
    outlets[A].extra = {"path": "\\u0000"}
    assert outlets.emitted()[0].extra == {"path": "\\u0000"}


def test_an_outlets_partition_key_is_its_events_and_tells_events_apart() -> None:
    outlets = OutletEvents([A, ALIAS])
    outlets[A].partition_key = "2026-01-01"
    outlets[ALIAS].partition_key = "2026-01-02"
    outlets[ALIAS].add(A)
    outlets[ALIAS].add(B)
    assert [(e.asset_uri, e.partition_key, e.ordinal) for e in outlets.emitted()] == [
        ("x-a", "2026-01-01", 0),
        ("x-a", "2026-01-02", 1),
        ("x-b", "2026-01-02", 0),
    ]
    outlets[A].partition_key = ""
    with pytest.raises(RowRefused, match="partition key"):
        outlets.emitted()


def test_the_runs_partition_key_is_that_of_its_events_unless_the_task_sets_another() -> None:
    outlets = OutletEvents([A, B, ALIAS], partition_key="2026-01-01")
    outlets[ALIAS].add(A, {"n": 1})
    outlets[B].partition_key = None
    assert [(e.asset_uri, e.partition_key) for e in outlets.emitted()] == [
        ("x-a", "2026-01-01"),
        ("x-b", None),
        ("x-a", "2026-01-01"),
    ]


def test_the_cost_of_an_event_does_not_grow_with_earlier_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0
    equal = Asset.__eq__

    def counted(self: Asset, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(self, other)

    monkeypatch.setattr(Asset, "__eq__", counted)
    alias = AssetAlias("many")
    events = OutletEvents([alias])
    for number in range(1_000):
        events[alias].add(Asset("x-test://a"), {"number": number})
    assert [event.ordinal for event in events.emitted()] == list(range(1_000))
    assert compared < 10_000


def test_equal_extras_are_one_event_in_whatever_order_their_keys_are() -> None:
    alias, other = AssetAlias("one"), AssetAlias("other")
    events = OutletEvents([alias, other])
    nested = {"b": [1], "a": {"y": 1, "x": 2}}
    events[alias].add(Asset("x-test://a"), nested)
    events[alias].add(Asset("x-test://a"), {"a": {"x": 2, "y": 1}, "b": [1]})
    events[other].add(Asset("x-test://a"), {"a": {"x": 2, "y": 1}, "b": [1]})
    (event,) = events.emitted()
    assert (event.extra, event.aliases) == (nested, ("one", "other"))
