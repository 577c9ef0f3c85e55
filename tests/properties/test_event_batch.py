"""Each event of an `EventBatch` keeps its rows and its order, and gets one answer, even if the batch is split."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import hypothesis.strategies as st
from hypothesis import given

from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.errors import LeaseLost, RowRefused, StoreError
from triggerer.store.events.event_batch import EventBatch

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, OTHER = Fence("one", "me", 1), Fence("other", "me", 4)
REFUSED = RowRefused("not JSON")


KEYS = st.sampled_from([None, None, "2026-01-01"])


@dataclass(eq=False)
class Event:
    number: int
    watchers: int
    fence: Fence | None
    is_refused: bool
    partition_key: str | None
    answered: list[Event]
    """The numbers of completed events, in order."""
    answers: list[Exception | None] = field(default_factory=list)
    published_at = None

    @property
    def has_rows(self) -> bool:
        return bool(self.watchers) and not self.is_refused

    def complete(self, error: Exception | None) -> None:
        self.answers.append(error)
        self.answered.append(self)


@st.composite
def submitted(draw: st.DrawFn) -> list[Event]:
    answered: list[Event] = []
    drawn = draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from([None, ONE, OTHER]), st.booleans(), KEYS),
            max_size=12,
        )
    )
    return [Event(number, *values, answered) for number, values in enumerate(drawn)]


def filled(events: list[Event]) -> EventBatch:
    batch = EventBatch()
    for event in events:
        if event.is_refused:
            batch.add_without_rows(event, REFUSED)
        else:
            watchers = tuple(WatcherRef(number, 10 + number) for number in range(event.watchers))
            source = EventSource(watchers, event.fence)
            key = event.partition_key
            extra = str(event.number)
            size = len(extra) * len(source.watchers)
            batch.add(event, source, extra, NOW, f"k{event.number}", 0, key, size_bytes=size)
    return batch


def rows_of(batch: EventBatch) -> list[tuple[object, ...]]:
    fences = [None, *batch.fences]
    if not batch.keys:
        return []
    row_fences = [fences[number] for number in batch.rows.fence_numbers()]
    columns = batch.rows.columns()
    plain = columns[:6]
    keys = columns[6] if len(columns) > 6 else [None] * len(batch.keys)
    return list(zip(*plain, keys, row_fences, strict=True))


def rows_for(events: list[Event]) -> list[tuple[object, ...]]:
    return [
        (
            10 + number,
            str(event.number),
            NOW,
            number,
            f"k{event.number}",
            0,
            event.partition_key,
            event.fence,
        )
        for event in events
        if not event.is_refused
        for number in range(event.watchers)
    ]


def smallest(batch: EventBatch) -> list[EventBatch]:
    halves = batch.halves()
    return [batch] if halves is None else [*smallest(halves[0]), *smallest(halves[1])]


@given(submitted())
def test_a_batch_has_the_rows_of_its_events_in_order(events: list[Event]) -> None:
    batch = filled(events)
    assert rows_of(batch) == rows_for(events)
    assert len(batch) == len(events)
    assert batch.size_bytes == sum(len(str(row[1])) for row in rows_for(events))


@given(submitted())
def test_halving_ends_with_one_event_each_and_loses_none(events: list[Event]) -> None:
    parts = smallest(filled(events))
    assert [row for part in parts for row in rows_of(part)] == rows_for(events)
    assert sum(map(len, parts)) == len(events)
    for part in parts:
        assert set(part.fences) == {fence for *_, fence in rows_of(part)} - {None}
    if any(event.has_rows for event in events):
        assert all(len(set(part.keys)) == 1 for part in parts)


@given(submitted(), st.booleans())
def test_each_event_is_answered_once_and_in_the_order_of_submission(
    events: list[Event], is_split: bool
) -> None:
    batch = filled(events)
    for part in smallest(batch) if is_split else [batch]:
        part.complete(None, {OTHER})
    answered = events[0].answered if events else []
    assert answered == events
    for event in events:
        (answer,) = event.answers
        if event.is_refused:
            assert answer is REFUSED
        elif event.has_rows and event.fence == OTHER:
            assert isinstance(answer, LeaseLost)
        else:
            assert answer is None


@given(submitted())
def test_a_refusal_reaches_the_events_with_rows_to_write(events: list[Event]) -> None:
    error = StoreError("full")
    filled(events).complete(error, frozenset())
    for event in events:
        (answer,) = event.answers
        if event.is_refused:
            assert answer is REFUSED
        else:
            assert answer is (error if event.has_rows else None)
