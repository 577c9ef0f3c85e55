"""The store finds occurrences that no notification has reported, and keeps messages until a target accepts them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import anyio
import pytest
from sqlalchemy import func, select, update

from tests.store.seeding import NOW, add_dag
from triggerer.domain.notifications import QUIET, Event, NotificationText
from triggerer.notifications.texts import Writer
from triggerer.scheduler.notifying.notifier import Notifier
from triggerer.scheduler.notifying.outcomes import delay_after
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.notifications import queue
from triggerer.store.notifications.queue import MOST_WAITING, TRIED_FIRST, QueuedMessage
from triggerer.store.runs.repeat import lock_run, queue_again
from triggerer.store.schema.models import (
    DagRun,
    Notification,
    NotifiedSubject,
    ParkedBody,
    ParkedMessage,
    Watcher,
)
from triggerer.store.watchers.parked_listing import replay_parked

MESSAGE = NotificationText("title", "body")


def notifier(database: Database, *targets: str, events: Sequence[Event] = tuple(Event)) -> Notifier:
    def no_url(target: str) -> str:
        raise AssertionError(f"nothing is sent to {target}")

    return Notifier(
        database,
        events,
        targets=targets or ("chat",),
        get_url=no_url,
        get_writer=lambda: Writer("here", ""),
    )


async def titles(database: Database) -> list[str]:
    """Take the titles of all queued messages out of the queue."""
    async with database.transaction() as session:
        rows = list(await session.scalars(select(Notification).order_by(Notification.id)))
        for row in rows:
            await session.delete(row)
    return [row.title for row in rows]


async def told(database: Database, **options: Any) -> list[str]:
    await notifier(database, **options).queue_messages()
    return await titles(database)


async def let_time_pass(database: Database, gap: timedelta = QUIET) -> None:
    async with database.transaction() as session:
        for row in await session.scalars(select(NotifiedSubject)):
            row.told_at -= gap


async def set_watcher(database: Database, number: int, state: str) -> None:
    async with database.transaction() as session:
        now = await database_now(session)
        changed = update(Watcher).where(Watcher.id == number)
        await session.execute(changed.values(state=state, error="refused", updated_at=now))


@pytest.fixture
async def watchers(watched: Database) -> Database:
    """Twelve watchers of the asset `orders`."""
    async with watched.transaction() as session:
        for number in range(1, 13):
            one = Watcher(id=number, asset_id=1, name=f"w{number}", trigger_id=1, path="f.py")
            one.updated_at, one.state = NOW, "running"
            session.add(one)
    return watched


async def park(database: Database, *numbers: int, watcher: int = 1) -> None:
    async with database.transaction() as session:
        for number in numbers:
            body = ParkedBody(stream_digest="stream", data=b"", size_bytes=0)
            body.id, body.idempotency_key = number, f"k{number}"
            session.add(body)
        await session.flush()
        for number in numbers:
            row = ParkedMessage(id=number, watcher_id=watcher, body_id=number, lane="null")
            row.idempotency_key, row.state, row.failures = f"k{number}", "set_aside", 1
            row.error, row.parked_at = f"error {number}", NOW
            session.add(row)


async def fail_runs(
    database: Database, dag_id: str, *numbers: int, ago: timedelta = timedelta(0)
) -> None:
    async with database.transaction() as session:
        now = await database_now(session)
        for number in numbers:
            run = DagRun(dag_id=dag_id, run_id=f"r{number}", run_type="manual", state="failed")
            run.run_after = run.queued_at = NOW
            run.ended_at, run.error = now - ago, f"error {number}"
            session.add(run)


async def test_a_failing_watcher_is_told_once_and_told_again_when_it_works(
    watchers: Database,
) -> None:
    assert await told(watchers) == []
    await set_watcher(watchers, 1, "failing")
    assert await told(watchers) == ["watcher orders/w1 is failing"]
    await let_time_pass(watchers)
    assert await told(watchers) == []
    await set_watcher(watchers, 1, "running")
    assert await told(watchers) == ["watcher orders/w1 works again"]
    await let_time_pass(watchers)
    assert await told(watchers) == []


async def test_a_watcher_that_recovers_soon_is_told_to_work_only_after_the_quiet_time(
    watchers: Database,
) -> None:
    await set_watcher(watchers, 1, "failing")
    await told(watchers)
    await set_watcher(watchers, 1, "catching_up")
    await let_time_pass(watchers, QUIET - timedelta(seconds=60))
    assert await told(watchers) == []
    await let_time_pass(watchers, timedelta(seconds=60))
    assert await told(watchers) == ["watcher orders/w1 works again"]


async def test_a_watcher_that_nobody_hosts_does_not_count_as_working(watchers: Database) -> None:
    await set_watcher(watchers, 1, "failing")
    await told(watchers)
    await set_watcher(watchers, 1, "waiting")
    await let_time_pass(watchers)
    assert await told(watchers) == []


async def test_a_deleted_watcher_is_forgotten(watchers: Database) -> None:
    await set_watcher(watchers, 1, "failing")
    await told(watchers)
    async with watchers.transaction() as session:
        await session.execute(update(Watcher).where(Watcher.id == 1).values(trigger_id=None))
    assert await told(watchers) == []
    async with watchers.reading() as session:
        rows = await session.scalars(select(NotifiedSubject.event))
        assert list(rows) == ["digest"]


async def test_many_failing_watchers_are_one_digest(watchers: Database) -> None:
    for number in range(1, 11):
        await set_watcher(watchers, number, "failing")
    assert await told(watchers) == ["triggerer: 10 failing watchers"]
    for number in (11, 12):
        await set_watcher(watchers, number, "failing")
    assert len(await told(watchers)) == 2


async def test_parked_messages_are_told_together_and_new_ones_after_the_quiet_time(
    watchers: Database,
) -> None:
    await park(watchers, 1, 2)
    assert await told(watchers) == ["2 messages of watcher orders/w1 are parked"]
    await park(watchers, 3)
    assert await told(watchers) == []
    await let_time_pass(watchers)
    assert await told(watchers) == ["1 message of watcher orders/w1 is parked"]


async def test_a_message_that_is_parked_again_after_a_replay_is_told_again(
    watchers: Database,
) -> None:
    await park(watchers, 1)
    await told(watchers)
    await let_time_pass(watchers)
    async with watchers.transaction() as session:
        await replay_parked(session, [1])
    assert await told(watchers) == []
    async with watchers.transaction() as session:
        await session.execute(update(ParkedMessage).values(state="set_aside"))
    assert await told(watchers) == ["1 message of watcher orders/w1 is parked"]


async def test_failed_runs_of_a_dag_are_counted_while_its_message_must_wait(
    database: Database,
) -> None:
    await add_dag(database, "sales", None)
    await add_dag(database, "stock", None)
    await fail_runs(database, "sales", 1)
    assert await told(database) == ["DAG sales: run r1 failed"]
    await fail_runs(database, "sales", 2, 3)
    await fail_runs(database, "stock", 4)
    assert await told(database) == ["DAG stock: run r4 failed"]
    await let_time_pass(database)
    assert await told(database) == ["DAG sales: 2 runs failed"]
    await let_time_pass(database)
    assert await told(database) == []


async def test_a_run_that_is_repeated_and_fails_again_is_told_again(database: Database) -> None:
    await add_dag(database, "sales", None)
    await fail_runs(database, "sales", 1)
    await told(database)
    await let_time_pass(database)
    async with database.transaction() as session:
        run = await lock_run(session, "sales", "r1")
        assert run is not None
        await queue_again(session, run, kept={}, cleared={})
    assert await told(database) == []
    async with database.transaction() as session:
        now = await database_now(session)
        await session.execute(update(DagRun).values(state="failed", ended_at=now))
    assert await told(database) == ["DAG sales: run r1 failed"]


async def test_a_failure_of_the_day_before_is_not_told(database: Database) -> None:
    await add_dag(database, "sales", None)
    await fail_runs(database, "sales", 1, ago=timedelta(hours=25))
    assert await told(database) == []
    await fail_runs(database, "sales", 2, ago=timedelta(hours=23))
    assert await told(database) == ["DAG sales: run r2 failed"]


async def test_only_the_chosen_events_are_told(watchers: Database) -> None:
    await set_watcher(watchers, 1, "failing")
    await park(watchers, 1)
    assert len(await told(watchers, events=[Event.PARKED])) == 1
    assert await told(watchers, events=[Event.RUN_FAILED]) == []


async def test_of_several_notifiers_one_tells(database: Database) -> None:
    for number in range(3):
        await add_dag(database, f"d{number}", None)
        await fail_runs(database, f"d{number}", number)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(notifier(database, "chat", "mail").queue_messages)
    async with database.reading() as session:
        rows = await session.execute(
            select(Notification.target, func.count()).group_by(Notification.target)
        )
        assert dict(rows.all()) == {"chat": 3, "mail": 3}


# The queue


async def queued(database: Database, *targets: str, messages: int = 1) -> datetime:
    async with database.transaction() as session:
        now = await database_now(session)
        await queue.put(session, targets, [MESSAGE] * messages, now)
    return now


async def claimed(
    database: Database, now: datetime, *targets: str, limit: int = 10
) -> list[QueuedMessage]:
    async with database.transaction() as session:
        lease = timedelta(minutes=1)
        return await queue.claim(session, targets, now, limit=limit, lease=lease)


async def test_a_claimed_message_is_due_again_if_its_process_dies(database: Database) -> None:
    now = await queued(database, "chat", "mail")
    first = await claimed(database, now, "chat")
    assert [(one.target, one.message, one.attempts) for one in first] == [("chat", MESSAGE, 1)]
    assert await claimed(database, now + timedelta(seconds=59), "chat") == []
    (again,) = await claimed(database, now + timedelta(minutes=1), "chat")
    assert (again.id, again.attempts) == (first[0].id, 2)


async def test_the_outcome_of_a_claim_that_was_lost_changes_nothing(database: Database) -> None:
    now = await queued(database, "chat")
    (lost,) = await claimed(database, now, "chat")
    await claimed(database, now + timedelta(minutes=1), "chat")
    async with database.transaction() as session:
        await queue.postpone(session, lost, now)
        await queue.release(session, lost, now)
    assert await claimed(database, now + timedelta(minutes=1), "chat") == []


async def test_untried_messages_wait_for_the_failed_one_and_their_attempt_does_not_count(
    database: Database,
) -> None:
    now = await queued(database, "chat", messages=2)
    await queued(database, "mail")
    first, second = await claimed(database, now, "chat")
    async with database.transaction() as session:
        await queue.postpone(session, first, now + delay_after(1))
        await queue.release(session, second, now)
        # A message that is queued in the meantime waits too.
        await queue.put(session, ["chat"], [MESSAGE], now)
        assert await queue.next_due(session, ["chat"]) == now + delay_after(1)
        mail_due = await queue.next_due(session, ["chat", "mail"])
    assert mail_due is not None
    assert mail_due < now + delay_after(1)
    assert await claimed(database, now + delay_after(1) / 2, "chat") == []
    again = await claimed(database, now + delay_after(1), "chat")
    assert [(one.id, one.attempts) for one in again] == [
        (first.id, 2),
        (second.id, 1),
        (second.id + 2, 1),
    ]


async def test_a_message_that_is_refused_many_times_lets_the_others_pass(
    database: Database,
) -> None:
    now = await queued(database, "chat", messages=2)
    orders = []
    for attempts in range(1, TRIED_FIRST + 2):
        order = await claimed(database, now, "chat")
        orders.append([one.id for one in order])
        async with database.transaction() as session:
            for one in order:
                if one.id == 1:
                    now += delay_after(attempts)
                    await queue.postpone(session, one, now)
                else:
                    await queue.release(session, one, now)
    assert orders == [[1, 2]] * TRIED_FIRST + [[2, 1]]


async def test_old_and_too_many_messages_are_dropped_the_oldest_first(database: Database) -> None:
    now = await queued(database, "chat", messages=MOST_WAITING + 2)
    await queued(database, "mail", "gone")
    async with database.transaction() as session:
        assert await queue.drop(session, ["chat", "mail"], now) == {"chat": 2}
        first = await session.scalar(select(func.min(Notification.id)))
        assert first == 3
        tomorrow = now + timedelta(days=1, seconds=1)
        dropped = await queue.drop(session, ["chat", "mail"], tomorrow)
    assert dropped == {"chat": MOST_WAITING, "mail": 1, "gone": 1}


def test_the_delay_doubles_up_to_ten_minutes() -> None:
    delays = [delay_after(attempts).total_seconds() for attempts in (1, 2, 3, 6, 7, 1000)]
    assert delays == [10, 20, 40, 320, 600, 600]
