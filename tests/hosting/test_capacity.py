"""No instance hosts more triggers than `[triggerer] capacity`. Watchers that wait for room show the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from structlog.testing import capture_logs

from tests.hosting.test_host import (
    declare,
    delete_watcher,
    eventually,
    hosting,
    owners,
    watchers,
)
from tests.store.seeding import count_events, until
from tests.unit.streams.streams import Upstream
from triggerer.domain.events import Fence
from triggerer.hosting.reconciliation import Reconciliation
from triggerer.store.database.opening import open_database
from triggerer.store.database.transactions import Database
from triggerer.store.schema.models import Stream
from triggerer.store.watchers import hosting as queries
from triggerer.streams import Manager, TriggerSpec

FULL = "no room: every instance hosts up to 2 triggers ([triggerer] capacity)"


async def wait_for_heartbeats(database: Database, number: int) -> None:
    """Wait until this number of heartbeats has begun and ended.

    Each heartbeat moves the end of the leases, so count the different ends.
    """
    ends: set[datetime | None] = set()

    async def have_passed() -> bool:
        async with database.reading() as session:
            ends.add(await session.scalar(select(func.max(Stream.expires_at))))
        return len(ends) > number + 1

    await eventually(have_passed)


async def test_a_stream_beyond_the_capacity_waits_with_the_reason_until_there_is_room(
    database: Database, upstream: Upstream
) -> None:
    for number in range(4):
        await declare(database, f"w{number}", upstream, stream=f"s{number}")

    async def shown() -> dict[str, tuple[str, str | None, str | None]]:
        return await watchers(database)

    running, waiting = ("running", None, "me"), ("waiting", FULL, None)
    with capture_logs() as logs:
        async with hosting(database, capacity=2) as host:

            async def is_full() -> bool:
                there = {"w0": running, "w1": running, "w2": waiting, "w3": waiting}
                return await shown() == there

            await eventually(is_full)
            assert sum(len(stream.members) for stream in host.manager.streams.values()) == 2
            # Several heartbeats later the states are the same, and the log does not repeat the warning.
            await wait_for_heartbeats(database, 3)
            assert await is_full()
            await delete_watcher(database, "w0")

            async def has_moved_up() -> bool:
                now = await shown()
                return (now["w2"], now["w3"]) == (running, waiting)

            await eventually(has_moved_up)
    warnings = [log for log in logs if "has room" in log["event"]]
    assert [(log["streams"], log["triggers"], log["capacity"]) for log in warnings] == [(2, 2, 2)]


async def test_a_stream_that_is_larger_than_the_capacity_says_how_large_it_is(
    database: Database, upstream: Upstream
) -> None:
    elsewhere = Upstream(f"{upstream.name}, elsewhere")
    for number in range(4):
        await declare(database, f"w{number}", upstream)
    await declare(database, "small", elsewhere, stream="small")
    async with hosting(database, capacity=3):
        reason = "no room: its stream has 4 triggers, [triggerer] capacity is 3"

        async def is_shown() -> bool:
            now = await watchers(database)
            rest = {now[f"w{number}"] for number in range(4)}
            return now["small"][0] == "running" and rest == {("waiting", reason, None)}

        await eventually(is_shown)
        # An instance hosts all watchers of a stream or none, so that no watcher misses a message that a sibling sees.
        await delete_watcher(database, "w0")
        await delete_watcher(database, "w1")
        upstream.put(1)
        await until(lambda: upstream.outcomes() == {1: (2, 0, 0)})


@pytest.mark.parametrize(("stays", "grows"), [("a", "b"), ("b", "a")])
async def test_a_stream_that_outgrows_the_capacity_is_given_up_and_nothing_else_is(
    database: Database, upstream: Upstream, stays: str, grows: str
) -> None:
    elsewhere = Upstream(f"{upstream.name}, elsewhere")
    await declare(database, "stays", elsewhere, stream=stays)
    await declare(database, "grows", upstream, stream=grows)
    async with hosting(database, capacity=2):

        async def are_owned() -> bool:
            return await owners(database) == {"a": "me", "b": "me"}

        # Wait, because a claim that the database does not accept in time is repeated.
        await eventually(are_owned)
        await declare(database, "more", upstream, stream=grows)

        async def is_given_up() -> bool:
            now = await watchers(database)
            waiting = ("waiting", FULL, None)
            return (now["grows"], now["more"]) == (waiting, waiting)

        async def stays_as_it_was() -> bool:
            return (await watchers(database))["stays"] == ("running", None, "me")

        await eventually(is_given_up)
        await eventually(stays_as_it_was)
        elsewhere.put(1)
        await until(lambda: elsewhere.outcomes() == {1: (1, 0, 0)})
        assert len(elsewhere.producers) == 1


async def test_triggers_declared_during_the_division_are_not_hosted_beyond_the_capacity(
    database: Database, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await declare(database, "w0", upstream)
    late = ["w1", "w2"]
    load_triggers, add = queries.load_triggers, Manager.add
    at_once: list[int] = []

    async def load_after_more_came(session: AsyncSession, digests: Iterable[str]) -> Any:
        while late:
            await declare(database, late.pop(), upstream)
        return await load_triggers(session, digests)

    def count_and_add(self: Manager, specs: Sequence[TriggerSpec]) -> Any:
        at_once.append(len(specs))
        return add(self, specs)

    monkeypatch.setattr(queries, "load_triggers", load_after_more_came)
    monkeypatch.setattr(Manager, "add", count_and_add)
    async with hosting(database, capacity=2):
        reason = "no room: its stream has 3 triggers, [triggerer] capacity is 2"

        async def all_wait() -> bool:
            return list((await watchers(database)).values()) == [("waiting", reason, None)] * 3

        await eventually(all_wait)
    assert max(at_once, default=0) <= 2


async def test_arguments_that_change_while_there_is_no_room_leave_no_gap_between_old_and_new(
    database: Database, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("changes", "stays"):
        await declare(database, name, upstream)
    load_triggers, reconcile = queries.load_triggers, Reconciliation.run
    declared = False

    async def load_after_the_change(session: AsyncSession, digests: Iterable[str]) -> Any:
        nonlocal declared
        if not declared and upstream.producers:
            declared = True
            # After the streams were divided, a watcher gets other arguments, and one watcher too many is declared.
            await declare(database, "changes", upstream, only=[1, 2])
            await declare(database, "more", upstream)
        return await load_triggers(session, digests)

    async def reconcile_and_wait(self: Reconciliation, owned: Mapping[str, Fence]) -> bool:
        is_complete = await reconcile(self, owned)
        if declared and not upstream.outcomes():
            # The changed watcher wants this message, with its old and with its new arguments.
            upstream.put(1)
            await until(lambda: 1 in upstream.outcomes())
        return is_complete

    monkeypatch.setattr(queries, "load_triggers", load_after_the_change)
    monkeypatch.setattr(Reconciliation, "run", reconcile_and_wait)
    async with hosting(database, capacity=2):

        async def all_wait() -> bool:
            return [state for state, _, _ in (await watchers(database)).values()] == ["waiting"] * 3

        await eventually(all_wait)
        assert upstream.outcomes() == {1: (2, 0, 0)}
    assert await count_events(database) == 2


async def test_with_a_second_instance_the_rest_goes_there(
    postgres_url: str, upstream: Upstream
) -> None:
    async with open_database(postgres_url) as database:
        for number in range(4):
            await declare(database, f"w{number}", upstream, stream=f"s{number}")

        async def states() -> list[str]:
            return sorted(state for state, _, _ in (await watchers(database)).values())

        async with hosting(database, "first", capacity=2):

            async def is_full() -> bool:
                return await states() == ["running", "running", "waiting", "waiting"]

            await eventually(is_full)
            async with hosting(database, "second", capacity=2):

                async def all_run() -> bool:
                    return await states() == ["running"] * 4

                await eventually(all_run)
                assert sorted(filter(None, (await owners(database)).values())) == [
                    *["first"] * 2,
                    *["second"] * 2,
                ]
            await eventually(is_full)
