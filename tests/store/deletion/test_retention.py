"""The service deletes old data in time, and shows a failure; on each database."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from tests.actors import TESTER
from tests.store.cleaning import DAY, age, count, events, run_once
from tests.store.deletion.test_cleaning_and_repeats import with_log
from tests.store.scheduling import now_of, one_asset
from tests.store.seeding import FENCE, NOW, add_asset, add_stream, emit, queue_of, runs_of
from triggerer.config.sections import RetentionSettings
from triggerer.domain.run_logs import log_path
from triggerer.errors import LeaseLost, MoveRefused, NoLog, StoreUnavailable, TriggererError
from triggerer.operations.cleaning import Limits, SteadyClock, clean, cleaner
from triggerer.operations.cleaning import bounds as cleaning_bounds
from triggerer.operations.reading.run_logs import no_log
from triggerer.processes.instance_ids import new_instance_id
from triggerer.service.retention import LogRetention, Retention
from triggerer.store.audit.cleanings import (
    TURN,
    CleaningState,
    begin_turn,
    end_turn,
    extend_turn,
    read_state,
)
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.runs.listing import list_runs
from triggerer.store.schema.models import (
    Asset,
    AssetEvent,
    Audit,
    CleaningTurn,
    DagRun,
    ParkedBody,
    ParkedMessage,
    QueuedAssetEvent,
    Trigger,
    Watcher,
)

ACK = timedelta(seconds=300)


def retention(database: Database, **settings: Any) -> Retention:
    return Retention(database, RetentionSettings(**settings), ack_timeout=ACK)


async def a_night_passes(database: Database) -> None:
    """Move the last cleaning, or the first check, to two days ago."""
    async with database.transaction() as session:
        then = await database_now(session) - 2 * DAY
        await session.execute(update(CleaningTurn).values(made_at=then, succeeded_at=then))


async def state_of(database: Database) -> CleaningState:
    async with database.reading() as session:
        state = await read_state(session)
    assert state is not None
    return state


@pytest.fixture
async def old(database: Database) -> Database:
    """Five events that are 100 days old and wait for nothing; the newest of them must stay."""
    await add_stream(database)
    await add_asset(database, 1, "orders")
    await emit(database, 1, 5)
    await age(database)
    return database


async def test_data_goes_in_the_first_night_and_then_once_each_night(old: Database) -> None:
    service = retention(old)
    for _ in range(2):
        assert await service.clean_if_due() is None
    await a_night_passes(old)
    found = await service.clean_if_due()
    assert found is not None
    assert (found.asset_events, await events(old)) == (4, [5])
    assert await service.clean_if_due() is None
    state = await state_of(old)
    assert (state.deleted["asset_events"], state.error, state.holder) == (4, None, None)


async def test_a_cleaning_that_fails_is_shown_counted_and_tried_again(
    old: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = retention(old)
    await service.clean_if_due()
    await a_night_passes(old)

    async def refused(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("as if the disk was full")

    with monkeypatch.context() as patched:
        patched.setattr(cleaner, "clean_events", refused)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await service.clean_if_due()
    state = await state_of(old)
    assert (state.error, state.failures, state.holder) == ("as if the disk was full", 2, None)
    assert await service.clean_if_due() is not None
    state = await state_of(old)
    assert (state.error, state.failures) == (None, 2)


async def test_one_cleaning_runs_at_a_time_until_its_process_is_dead(old: Database) -> None:
    service = retention(old)
    await service.clean_if_due()
    await a_night_passes(old)
    dead = new_instance_id()
    async with old.transaction() as session:
        assert await begin_turn(session, dead)
    # The dead process has the turn until its lease expires. So neither another scheduler nor `db clean` may clean.
    assert await service.clean_if_due() is None
    with pytest.raises(MoveRefused, match="a cleaning is under way"):
        await clean(old, TESTER, Limits(), ack_timeout=ACK)
    await set_expiry(old, -timedelta(seconds=1))
    assert await service.clean_if_due() is not None
    # The first process may be slow, not dead. It has lost its turn in any case.
    async with old.transaction() as session:
        assert await begin_turn(session, "other")
    with pytest.raises(LeaseLost):
        async with old.transaction() as session:
            await extend_turn(session, dead)
    async with old.transaction() as session:
        await end_turn(session, dead)
    assert (await state_of(old)).holder == "other"


@pytest.mark.parametrize("outcome", [{"deleted": {"runs": 9}}, {"error": "too slow"}])
@pytest.mark.parametrize("has_other_ended", [True, False])
async def test_the_end_of_a_cleaning_that_lost_its_turn_leaves_the_outcome_of_the_other(
    database: Database, outcome: dict[str, Any], has_other_ended: bool
) -> None:
    async with database.transaction() as session:
        assert await begin_turn(session, "slow")
    await set_expiry(database, -timedelta(seconds=1))
    async with database.transaction() as session:
        assert await begin_turn(session, "other")
        if has_other_ended:
            await end_turn(session, "other", deleted={"runs": 1})
    before = await state_of(database)
    async with database.transaction() as session:
        await end_turn(session, "slow", **outcome)
    assert await state_of(database) == before


async def test_a_clock_that_was_set_back_ends_a_turn(old: Database) -> None:
    async with old.transaction() as session:
        await begin_turn(session, "a")
        assert not await begin_turn(session, "b")
    await set_expiry(old, TURN + timedelta(minutes=1))
    async with old.transaction() as session:
        assert await begin_turn(session, "b")


async def test_a_wrong_clock_deletes_nothing_and_a_night_counts_after_it_was_set_back(
    old: Database,
) -> None:
    here = await now_of(old) - timedelta(hours=2)
    wrong = Retention(
        old, RetentionSettings(), ack_timeout=ACK, clock=SteadyClock(lambda: 0.0, lambda: here)
    )
    await wrong.clean_if_due()
    await a_night_passes(old)
    with pytest.raises(TriggererError, match="differ by more than an hour"):
        await wrong.clean_if_due()
    assert len(await events(old)) == 5
    # The last cleaning seems to lie a year ahead.
    service = retention(old)
    async with old.transaction() as session:
        ahead = datetime.now(UTC) + 365 * DAY
        await session.execute(update(CleaningTurn).values(succeeded_at=ahead))
    assert await service.clean_if_due() is None
    since = datetime.now(UTC) - 2 * DAY
    service = Retention(old, RetentionSettings(), ack_timeout=ACK, since=since)
    assert await service.clean_if_due() is not None


async def set_expiry(database: Database, ahead: timedelta) -> None:
    expires_at = await now_of(database) + ahead
    async with database.transaction() as session:
        await session.execute(update(CleaningTurn).values(expires_at=expires_at))


async def test_a_log_goes_before_its_run_which_says_so(database: Database, tmp_path: Path) -> None:
    log = await with_log(database, tmp_path)
    elsewhere = Path(log_path(str(tmp_path), "maker", "last"))
    async with database.transaction() as session:
        recent = await database_now(session) - 40 * DAY
        await session.execute(update(DagRun).values(ended_at=recent, executor=new_instance_id()))
        not_here = update(DagRun).where(DagRun.run_id == "last")
        await session.execute(not_here.values(executor="elsewhere:1:a"))
    service = retention(database)
    await service.clean_if_due()
    await a_night_passes(database)
    found = await service.clean_if_due()
    assert found is not None
    assert (found.logs, found.runs, log.exists(), elsewhere.exists()) == (1, 0, False, False)
    async with database.reading() as session:
        last, first = await list_runs(session, dag="maker")
    # The executor on the other machine deletes the logs there.
    assert (first.log_path, last.log_path) == (None, str(elsewhere))
    assert isinstance(no_log(first), NoLog)
    assert re.search("was deleted by age: the run ended at 20", str(no_log(first)))


async def test_an_executor_deletes_the_logs_of_its_machine(
    database: Database, tmp_path: Path
) -> None:
    log = await with_log(database, tmp_path)
    service = LogRetention(database, 30 * DAY)
    assert await service.clean_if_due() == 0
    assert log.exists()
    service = LogRetention(database, 30 * DAY, since=await now_of(database) - 2 * DAY)
    assert await service.clean_if_due() == 1
    assert not log.exists()
    assert len(await runs_of(database, "maker")) == 2


async def test_an_executor_deletes_other_logs_if_one_cannot_be_deleted(
    database: Database, tmp_path: Path
) -> None:
    stuck = await with_log(database, tmp_path)
    stuck.unlink()
    # A folder cannot be deleted as a file, not even by root.
    stuck.mkdir()
    other = Path(log_path(str(tmp_path), "maker", "last"))
    other.write_text("…")
    async with database.transaction() as session:
        await session.execute(update(DagRun).values(executor=new_instance_id()))
    service = LogRetention(database, 30 * DAY, since=await now_of(database) - 2 * DAY)
    for _ in range(2):
        with pytest.raises(TriggererError, match=re.escape(str(stuck))):
            await service.clean_if_due()
        assert not other.exists()
        first, last = await runs_of(database, "maker")
        assert (first.log_home, last.log_home) == (str(tmp_path), None)
    stuck.rmdir()
    assert await service.clean_if_due() == 0


async def test_the_audit_and_parked_messages_go_by_their_own_ages(old: Database) -> None:
    now = await now_of(old)
    async with old.transaction() as session:
        asset = await session.scalar(select(Asset.id))
        session.add(
            Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest=FENCE.stream_digest)
        )
        session.add(
            Watcher(id=1, asset_id=asset, name="w", trigger_id=1, path="d.py", updated_at=NOW)
        )
        for number, state in enumerate(("set_aside", "set_aside", "kept")):
            key = f"m{number}"
            body = ParkedBody(
                stream_digest=FENCE.stream_digest, idempotency_key=key, data=b"1", size_bytes=1
            )
            session.add(body)
            await session.flush()
            session.add(
                ParkedMessage(
                    watcher_id=1, body_id=body.id, lane="[0]", idempotency_key=key, state=state,
                    failures=1, parked_at=now - (number + 1) % 2 * 20 * DAY,
                )
            )  # fmt: skip
        for days in (401, 399):
            session.add(
                Audit(
                    at=now - days * DAY,
                    actor="a",
                    role="admin",
                    via="cli",
                    action="x.y",
                    subject="s",
                )
            )
    service = retention(old, parked=10 * DAY)
    await service.clean_if_due()
    await a_night_passes(old)
    found = await service.clean_if_due()
    assert found is not None
    assert (found.audit, found.parked) == (1, 1)
    # The row of the cleaning itself is new.
    assert (await count(old, Audit), await count(old, ParkedMessage)) == (2, 2)
    assert await count(old, ParkedBody) == 2


async def test_a_full_database_loses_its_oldest_tenth_with_its_runs(database: Database) -> None:
    await one_asset(database)
    for _ in range(10):
        await emit(database, 1)
        await run_once(database)
    async with database.transaction() as session:
        then = datetime.now(UTC) - DAY
        await session.execute(update(AssetEvent).values(timestamp=then, extra={}))
        ended = {"ended_at": then, "queued_at": then, "run_after": then, "state": "success"}
        await session.execute(update(DagRun).values(**ended))
        newest = update(AssetEvent).where(AssetEvent.id > 2)
        await session.execute(newest.values(timestamp=then + timedelta(hours=1)))
        await session.execute(
            update(DagRun).where(DagRun.id > 2).values(ended_at=then + timedelta(hours=2))
        )
    roomy, full = retention(database, max_events=10), retention(database, max_events=9)
    for _ in range(2):
        assert await roomy.clean_if_due() is None
    found = await full.clean_if_due()
    assert found is not None
    assert (found.runs, found.asset_events) == (2, 2)
    assert await events(database) == list(range(3, 11))
    assert len({run for _, run in await queue_of(database, "report")}) == 8
    # A bound starts the next cleaning after ten minutes at the earliest.
    assert await retention(database, max_events=1).clean_if_due() is None


async def test_files_that_do_not_shrink_are_full_again_only_when_they_have_grown(
    old: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1_000

    async def measured(_: Any) -> int:
        return size

    monkeypatch.setattr(cleaning_bounds, "database_bytes", measured)
    service = retention(old, max_bytes=900)
    await service.clean_if_due()
    assert await service.clean_if_due() is not None
    is_file = old.path is None
    assert (await state_of(old)).full_bytes == (1_000 if is_file else None)

    async def later() -> bool:
        async with old.transaction() as session:
            await session.execute(update(CleaningTurn).values(began_at=NOW))
        return await service.clean_if_due() is not None

    assert await later() is not is_file
    size = 1_100
    assert await later()
    size = 800
    assert not await later()


async def test_the_keys_of_a_deleted_run_are_free_even_if_events_never_go(old: Database) -> None:
    async with old.transaction() as session:
        first = update(AssetEvent).where(AssetEvent.id == 1)
        await session.execute(
            first.values(source_dag_id="d", source_run_id="gone", idempotency_key="d/gone/0")
        )
    service = retention(old, events=None)
    await service.clean_if_due()
    await a_night_passes(old)
    assert await service.clean_if_due() is not None
    async with old.reading() as session:
        key = await session.scalar(select(AssetEvent.idempotency_key).where(AssetEvent.id == 1))
        assert await session.scalar(select(func.count()).select_from(QueuedAssetEvent)) == 0
    assert (key, len(await events(old))) == ("~/1", 5)
