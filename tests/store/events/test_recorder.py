import math
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from sqlalchemy import text, update

from tests.store.seeding import (
    FENCE,
    SOURCE,
    Event,
    add_asset,
    add_dag,
    add_stream,
    asset_json,
    count_events,
    emit,
    events_in,
    queue_of,
    record,
    recording,
)
from triggerer.domain.events import EventSource, Fence, WatcherRef
from triggerer.errors import LeaseLost, RowRefused
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.database.wakeups.listening import listen
from triggerer.store.database.wakeups.signals import ALL, Signal
from triggerer.store.events.encoding import encode_extra
from triggerer.store.events.recorder import EventRecorder
from triggerer.store.schema.models import Stream


async def _one_dag(database: Database) -> None:
    await add_asset(database, 1, "flights")
    await add_dag(database, "report", asset_json("flights"), assets=[1])


async def test_events_are_stored_in_order_and_queued_for_the_dags_that_wait(
    database: Database,
) -> None:
    await _one_dag(database)
    await add_dag(database, "paused", asset_json("flights"), assets=[1], is_paused=True)
    await add_dag(database, "stale", asset_json("flights"), assets=[1], is_stale=True)
    events = [Event({"n": n}, f"key-{n}") for n in range(300)]
    async with recording(database, max_batch_rows=70) as recorder:
        await record(recorder, *events)
    stored = await events_in(database)
    assert [row.extra for row in stored] == [{"n": n} for n in range(300)]
    assert [event.error for event in events] == [None] * 300
    assert [row.timestamp for row in stored] == sorted(row.timestamp for row in stored)
    ids = [row.id for row in stored]
    assert await queue_of(database, "report") == [(event_id, None) for event_id in ids]
    assert await queue_of(database, "paused") == [(event_id, None) for event_id in ids]
    assert await queue_of(database, "stale") == []


async def test_a_partition_key_is_stored_with_its_event_and_a_bad_one_fails_it_alone(
    database: Database,
) -> None:
    await add_asset(database, 1, "flights")
    plain = [Event({"n": n}) for n in range(3)]
    keyed = [Event({"n": n}, partition_key=f"2026-01-0{n}") for n in range(3, 6)]
    bad = [Event({}, partition_key=key) for key in ("", 7, "a\0b", "x" * 251, "\ud800")]
    async with recording(database, max_batch_rows=4) as recorder:
        await record(recorder, *plain, *keyed, *bad, Event({"n": 6}))
    stored = await events_in(database)
    assert [row.partition_key for row in stored] == [
        *[None] * 3,
        "2026-01-03",
        "2026-01-04",
        "2026-01-05",
        None,
    ]
    assert [row.extra for row in stored] == [{"n": n} for n in range(7)]
    assert all(isinstance(event.error, RowRefused) for event in bad)


async def test_events_submitted_in_one_turn_of_the_loop_have_one_instant(
    database: Database,
) -> None:
    await _one_dag(database)
    async with recording(database) as recorder:
        first = datetime.now(UTC)
        await record(recorder, Event(1, "a"), Event(2, "b"))
        between = datetime.now(UTC)
        await record(recorder, Event(3, "c"))
        last = datetime.now(UTC)
    one, two, three = [row.timestamp for row in await events_in(database)]
    assert first <= one == two <= between <= three <= last


async def test_a_flush_takes_all_that_waits(database: Database) -> None:
    await _one_dag(database)
    async with recording(database) as recorder:
        await record(recorder, *(Event({"n": n}, f"k{n}") for n in range(500)))
        assert recorder.flushes == 1
        assert recorder.rows_written == 500


async def _sizes_of_flushes(
    database: Database, monkeypatch: pytest.MonkeyPatch, *events: Event, **options: Any
) -> list[int]:
    """Return the number of rows in each flush, if all events are submitted before the first flush."""
    sizes: list[int] = []
    perform_step = database.perform_step

    async def noted(step: Any) -> Any:
        sizes.append(len(step.rows))
        return await perform_step(step)

    monkeypatch.setattr(database, "perform_step", noted)
    async with recording(database, **options) as recorder:
        await record(recorder, *events)
    assert [event.error for event in events] == [None] * len(events)
    return sizes


async def test_a_group_has_at_most_its_bound_of_rows_and_splits_no_event(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _one_dag(database)
    three = EventSource(tuple(WatcherRef(number, 1) for number in range(3)), None)
    events = [Event({"n": n}, f"k{n}", source=three) for n in range(7)]
    assert await _sizes_of_flushes(database, monkeypatch, *events, max_batch_rows=7) == [6, 6, 6, 3]


async def test_an_event_with_more_rows_than_the_bound_goes_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _one_dag(database)
    nine = EventSource(tuple(WatcherRef(number, 1) for number in range(9)), None)
    events = [Event("a", "a"), Event("b", "b", source=nine), Event("c", "c"), Event("d", "d")]
    assert await _sizes_of_flushes(database, monkeypatch, *events, max_batch_rows=7) == [1, 9, 2]


async def test_a_flush_of_large_payloads_is_bounded_by_their_size(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _one_dag(database)
    monkeypatch.setattr("triggerer.store.events.recorder.MAX_BATCH_BYTES", 1_000)
    sizes = [400, 400, 400, 3_000, 100, 100]
    events = [Event({"text": "x" * size}, f"k{n}") for n, size in enumerate(sizes)]
    assert await _sizes_of_flushes(database, monkeypatch, *events) == [2, 1, 1, 2]


async def test_keys_and_payloads_are_stored_to_the_letter_each_with_its_own_row(
    database: Database,
) -> None:
    await _one_dag(database)
    two = EventSource((WatcherRef(1, 1), WatcherRef(2, 1)), None)
    odd = ['"', "\\", "", ",", "[]", "\x1f\n\t", "\u2028 \U0001f600", "null", "{}"]
    events = [
        Event({key: [key, {"n": n}], "f": 1.5}, key, ordinal=n % 3, source=two if n % 2 else SOURCE)
        for n, key in enumerate(odd)
    ]
    async with recording(database) as recorder:
        await record(recorder, *events)
    assert [event.error for event in events] == [None] * len(odd)
    stored = [
        (row.idempotency_key, row.extra, row.ordinal, row.watcher_id)
        for row in await events_in(database)
    ]
    assert stored == [
        (key, {key: [key, {"n": n}], "f": 1.5}, n % 3, watcher.watcher_id)
        for n, key in enumerate(odd)
        for watcher in (two if n % 2 else SOURCE).watchers
    ]


@pytest.mark.rule(
    "13: a redelivered message makes no second event, because the store has its key already"
)
async def test_a_repeat_confirms_and_is_neither_stored_nor_queued_again(
    database: Database,
) -> None:
    await _one_dag(database)
    first, again, other = Event("a", "key"), Event("b", "key"), Event("c", "key", ordinal=1)
    async with recording(database) as recorder:
        await record(recorder, first)
        await record(recorder, again, other)
    assert [event.error for event in (first, again, other)] == [None, None, None]
    assert [row.extra for row in await events_in(database)] == [{"payload": "a"}, {"payload": "c"}]
    assert len(await queue_of(database, "report")) == 2


async def test_it_is_full_until_enough_bytes_are_settled(database: Database) -> None:
    await _one_dag(database)
    three = EventSource(tuple(WatcherRef(number, 1) for number in range(3)), None)
    recorder = EventRecorder(database, on_fenced=lambda fence: None, max_pending_bytes=1_000)
    texts = ["x" * 200, "x" * 80, "\U0001f600" + "x" * 100]
    seen = []
    for n, text_ in enumerate(texts):
        Event({"text": text_}, f"k{n}", source=three).submit_to(recorder)
        seen.append((recorder.is_full, recorder.unsettled_bytes))
    # Each event becomes three rows, so the recorder counts its payload three times. Because of the emoji, Python stores
    # each character of the third text in four bytes.
    assert seen[0] == (False, 3 * len(encode_extra({"text": texts[0]}, max_bytes=1_000)))
    assert [is_full for is_full, _ in seen] == [False, False, True]
    assert seen[2][1] - seen[1][1] > 3 * 4 * 100
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(30):
            tasks.start_soon(recorder.run)
            await recorder.wait_for_room()
            assert not recorder.is_full
            await recorder.drained()
        tasks.cancel_scope.cancel()
    assert recorder.unsettled_bytes == 0
    assert await count_events(database) == 9


async def test_an_event_that_alone_is_larger_than_the_bound_is_stored(database: Database) -> None:
    await _one_dag(database)
    async with recording(database, max_pending_bytes=10) as recorder:
        await record(recorder, Event({"text": "x" * 100}, "a"), Event({"text": "x" * 100}, "b"))
        assert (recorder.is_full, recorder.unsettled_bytes) == (False, 0)
    assert await count_events(database) == 2


async def test_refused_and_fenced_events_are_no_longer_counted_in_bytes(database: Database) -> None:
    await _one_dag(database)
    fenced = EventSource((WatcherRef(1, 1),), Fence("gone", "nobody", 1))
    unknown = EventSource((WatcherRef(1, 2**63),), None)
    plain = EventSource((WatcherRef(1, 1),), None)
    events = [Event(n, f"k{n}", source=unknown if n == 3 else plain) for n in range(10)]
    events += [Event("a", "a", source=fenced), Event(float, "not JSON")]
    async with recording(database, max_pending_bytes=50) as recorder:
        await record(recorder, *events)
        assert (recorder.is_full, recorder.unsettled_bytes) == (False, 0)
    assert await count_events(database) == 9


async def test_a_repeat_within_one_flush_is_stored_once(database: Database) -> None:
    await _one_dag(database)
    async with recording(database) as recorder:
        await record(recorder, Event("a", "key"), Event("a", "key"))
    assert await count_events(database) == 1
    assert len(await queue_of(database, "report")) == 1


async def test_events_without_a_key_are_never_repeats(database: Database) -> None:
    await _one_dag(database)
    async with recording(database) as recorder:
        await record(recorder, Event("a"), Event("a"))
    assert await count_events(database) == 2


@pytest.mark.rule(
    "13: a redelivered message makes no second event, because the store has its key already"
)
async def test_each_watcher_of_a_trigger_gets_its_row(database: Database) -> None:
    await _one_dag(database)
    await add_asset(database, 2, "weather")
    source = EventSource((WatcherRef(7, 1), WatcherRef(8, 1), WatcherRef(9, 2)), None)
    async with recording(database) as recorder:
        await record(recorder, Event("a", "key", source=source))
    rows = await events_in(database)
    assert [(row.watcher_id, row.asset_id) for row in rows] == [(7, 1), (8, 1), (9, 2)]
    assert len(await queue_of(database, "report")) == 2


async def test_the_scheduler_is_woken_for_the_dags_that_wait_and_only_after_the_commit(
    database: Database,
) -> None:
    await _one_dag(database)
    await add_dag(database, "other", asset_json("else"))
    with database.wakeups.subscribe(Signal.EVENTS_QUEUED) as subscription:
        async with recording(database) as recorder:
            Event("a").submit_to(recorder)
            with anyio.fail_after(10):
                woken = await subscription.wait()
        assert woken == {Signal.EVENTS_QUEUED: {"report"}}
    assert await count_events(database) == 1


BAD: list[tuple[str, Any]] = [
    ("a NUL character", {"text": "a\0b"}),
    ("a NUL character in a key", {"deep": [{"a\0": 1}]}),
    ("bytes", {"body": b"raw"}),
    ("too large", {"text": "x" * 2_000}),
    ("no JSON at all", {"thing": object()}),
    ("a number beyond 64 bits", {"n": 2**70}),
    ("half of a surrogate pair", {"text": "\ud800"}),
    ("NaN", {"price": math.nan}),
    ("an infinity among nulls", {"none": None, "rows": [{"price": (1.0, -math.inf)}]}),
    ("NaN as it is", math.nan),
    ("NaN as a key", {1: {math.nan: "x"}}),
    ("two keys that are equal in JSON", {1: "a", "1": "b"}),
]


@pytest.mark.rule(
    "16: a row that the store refuses fails only its own event",
    "one payload that cannot be serialised fails all events of its group commit",
)
@pytest.mark.parametrize("payload", [bad for _, bad in BAD], ids=[name for name, _ in BAD])
async def test_a_payload_that_cannot_be_stored_fails_alone(
    database: Database, payload: dict[str, Any]
) -> None:
    await _one_dag(database)
    before, bad, after = Event("before"), Event(payload), Event("after")
    async with recording(database, max_event_bytes=1_000) as recorder:
        await record(recorder, before, bad, after)
        assert recorder.flushes == 1
    assert isinstance(bad.error, RowRefused)
    assert (before.error, after.error) == (None, None)
    assert await count_events(database) == 2


async def test_text_that_looks_like_an_escaped_nul_is_stored(database: Database) -> None:
    await _one_dag(database)
    payload = {"text": "a backslash and u0000: \\u0000", "nothing": None, "set": {2, 1}}
    async with recording(database) as recorder:
        event = Event(payload)
        await record(recorder, event)
    assert event.error is None
    (row,) = await events_in(database)
    assert row.extra == {"text": payload["text"], "nothing": None, "set": [1, 2]}


@pytest.mark.parametrize("key", ["a\0b", "x" * 1_001, "\ud800"])
async def test_an_idempotency_key_that_cannot_be_stored_fails_its_event_alone(
    database: Database, key: str
) -> None:
    await _one_dag(database)
    bad, good = Event("bad", key), Event("good", "x" * 1_000)
    async with recording(database) as recorder:
        await record(recorder, bad, good)
    assert isinstance(bad.error, RowRefused)
    assert good.error is None
    assert await count_events(database) == 1


@pytest.mark.rule("16: a row that the store refuses fails only its own event")
async def test_a_row_that_the_database_refuses_is_found_among_a_thousand(
    database: Database,
) -> None:
    await _one_dag(database)
    events = [Event(n, f"k{n}") for n in range(1_000)]
    # The recorder does not check the asset's id, so the driver or the column refuses it.
    events[617].source = EventSource((WatcherRef(7, 2**63),), None)
    async with recording(database) as recorder:
        await record(recorder, *events)
    assert isinstance(events[617].error, RowRefused)
    assert [n for n, event in enumerate(events) if event.error is not None] == [617]
    stored = [row.extra["payload"] for row in await events_in(database)]
    assert stored == [n for n in range(1_000) if n != 617]


async def test_the_payload_is_stored_as_it_was_when_it_was_submitted(database: Database) -> None:
    await _one_dag(database)
    payload = {"n": 1}
    async with recording(database) as recorder:
        Event(payload).submit_to(recorder)
        payload["n"] = 2
        await recorder.drained()
    (row,) = await events_in(database)
    assert row.extra == {"n": 1}


@pytest.mark.rule("15: an owner that has lost its lease can write nothing")
async def test_a_fenced_owner_writes_nothing_and_its_siblings_go_through(
    database: Database,
) -> None:
    await _one_dag(database)
    await add_stream(database)
    watchers = (WatcherRef(7, 1),)
    mine = Event("mine", "a", source=EventSource(watchers, FENCE))
    stale = Event("stale", "b", source=EventSource(watchers, FENCE._replace(epoch=2)))
    others = Event("others", "c", source=EventSource(watchers, FENCE._replace(owner="they")))
    unknown = Event("unknown", "d", source=EventSource(watchers, Fence("gone", "me", 3)))
    lost: list[Fence] = []
    async with recording(database, on_fenced=lost.append) as recorder:
        await record(recorder, mine, stale, others, unknown)
    assert mine.error is None
    for event in (stale, others, unknown):
        assert isinstance(event.error, LeaseLost)
    assert set(lost) == {event.source.fence for event in (stale, others, unknown)}
    assert [row.extra for row in await events_in(database)] == [{"payload": "mine"}]


async def test_a_takeover_waits_for_the_flush_that_checked_the_lease(postgres: Database) -> None:
    await _one_dag(postgres)
    await add_stream(postgres)
    await emit(postgres, 1)
    seen: list[int | None] = []

    async def take_over() -> None:
        async with postgres.writer.begin() as connection:
            await connection.execute(update(Stream).values(owner="they", epoch=4))
            seen.append(await connection.scalar(text("SELECT count(*) FROM asset_event")))

    async def until_waiting(transactions: int) -> None:
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        async with postgres.writer.connect() as connection:
            while await connection.scalar(waiting) != transactions:
                await connection.rollback()

    event = Event("a", "key", source=EventSource((WatcherRef(7, 1),), FENCE))
    async with anyio.create_task_group() as tasks, recording(postgres) as recorder:
        async with postgres.writer.connect() as blocker:
            # In the middle of its transaction, the flush waits until this row is committed or rolled back.
            await blocker.execute(
                text(
                    "INSERT INTO asset_event (asset_id, extra, timestamp, watcher_id,"
                    " idempotency_key, ordinal) VALUES (1, '{}', now(), 7, 'key', 0)"
                )
            )
            event.submit_to(recorder)
            await until_waiting(1)
            tasks.start_soon(take_over)
            await until_waiting(2)
            await blocker.rollback()
        with anyio.fail_after(30):
            await recorder.drained()
    assert event.error is None
    assert seen == [2]


async def test_dags_whose_names_exceed_a_notification_are_all_woken(
    postgres: Database, postgres_url: str
) -> None:
    await add_asset(postgres, 1, "flights")
    for n in range(60):
        await add_dag(postgres, f"{n}{'x' * 200}", asset_json("flights"), assets=[1])
    async with open_database(postgres_url) as other, anyio.create_task_group() as tasks:
        await tasks.start(listen, other)
        heard = other.wakeups.subscribe(Signal.EVENTS_QUEUED)
        async with recording(postgres) as recorder:
            await record(recorder, Event("a"))
        with anyio.fail_after(10):
            assert await heard.wait() == {Signal.EVENTS_QUEUED: {ALL}}
        tasks.cancel_scope.cancel()


async def test_cancelling_settles_nothing(database: Database) -> None:
    await _one_dag(database)
    events = [Event(n) for n in range(10)]
    async with recording(database) as recorder:
        for event in events:
            event.submit_to(recorder)
    assert all(event.outcomes in ([], [None]) for event in events)
    settled = sum(len(event.outcomes) for event in events)
    assert recorder.unsettled == 10 - settled
