"""Instances report their live state, and every part of the service shows its heartbeat."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from sqlalchemy import select, update

from tests.store.seeding import FENCE, add_asset, add_stream
from triggerer.domain.live_state import LaneLive, Pause, StreamLive
from triggerer.hosting.reporting import OFTEN, SELDOM, Reporter
from triggerer.operations.health import EXPECTED, read_health
from triggerer.processes.instance_ids import release
from triggerer.store.database.transactions import Database, database_now
from triggerer.store.schema.models import Instance, InstanceReport, Stream, Trigger, Watcher
from triggerer.store.streams import presence
from triggerer.store.streams.leases import deregister_instance, register_instance
from triggerer.store.streams.listing import list_instances, list_streams
from triggerer.store.streams.presence import Presence
from triggerer.store.streams.reports import ask_for_reports, load_reports

LIVE = StreamLive(
    stream_id=FENCE.stream_digest,
    stream="memory",
    system="memory",
    epoch=FENCE.epoch,
    consumed=7,
    advanced=4,
    rejected=1,
    failed=0,
    restarts=2,
    outstanding=3,
    outstanding_bytes=30,
    lag_messages=12,
    lag_seconds=1.5,
    behind=1,
    failing=0,
    triggers=2,
    paused=[Pause("lane_full", '"a"')],
    lane_count=1,
    lanes=[LaneLive('"a"', 3, 30, 1.5, None, is_full=True)],
)


@pytest.fixture
async def watched_stream(database: Database) -> Database:
    """A stream that we own, with a watcher."""
    await add_stream(database)
    await add_asset(database, 1, "orders")
    async with database.transaction() as session:
        session.add(
            Trigger(id=1, digest="t", classpath="x.Y", kwargs={}, stream_digest=FENCE.stream_digest)
        )
        await session.flush()
        now = await database_now(session)
        session.add(Watcher(asset_id=1, name="w", trigger_id=1, path="d", updated_at=now))
        later = now + timedelta(minutes=1)
        await session.execute(update(Stream).values(expires_at=later))
        await register_instance(session, FENCE.owner, kind="triggerer")
    return database


async def test_the_report_of_a_streams_owner_is_shown_with_it(watched_stream: Database) -> None:
    reporter = Reporter(watched_stream, FENCE.owner, lambda: [LIVE])
    await reporter.report()
    await reporter.report()
    async with watched_stream.reading() as session:
        (shown,) = await list_streams(session)
        reports = await load_reports(session, [FENCE.owner])
        version = await session.scalar(select(InstanceReport.version))
    assert version == 2
    (reported,) = reports[FENCE.owner].streams.values()
    assert replace(reported, history=None) == LIVE
    assert (shown.lag, shown.lag_seconds, shown.outstanding) == (12, 1.5, 3)
    assert (shown.paused, shown.paused_reasons) == ('lane full: "a"', ["lane_full"])
    assert shown.reported_at is not None
    assert shown.history is not None
    # The history has one value a minute. The two reports may belong to two minutes, so add up all values.
    assert (shown.history.lag[-1], sum(map(int, shown.history.consumed))) == (12, 7)
    assert timedelta(0) <= shown.reported_at - shown.history.since < timedelta(minutes=2)
    assert [(lane.lane, lane.outstanding, lane.paused) for lane in shown.lanes] == [
        ('"a"', 3, "full")
    ]


async def test_a_report_of_another_lease_is_not_shown(watched_stream: Database) -> None:
    await Reporter(watched_stream, FENCE.owner, lambda: [replace(LIVE, epoch=99)]).report()
    async with watched_stream.reading() as session:
        (shown,) = await list_streams(session)
    assert shown.reported_at is None
    assert shown.outstanding is None


async def test_reports_come_at_once_and_often_while_somebody_looks(
    watched_stream: Database,
) -> None:
    assert OFTEN < SELDOM
    times = 0

    def look() -> list[StreamLive]:
        nonlocal times
        times += 1
        return [LIVE]

    reporter = Reporter(watched_stream, FENCE.owner, look)
    async with anyio.create_task_group() as tasks:
        await tasks.start(reporter.run)
        with anyio.fail_after(20):
            while times < 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            await anyio.sleep(0.1)
            await ask_for_reports(watched_stream.reading, watched_stream.transaction)
            while times < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    async with watched_stream.reading() as session:
        before = await session.scalar(select(InstanceReport.looked_at))
    # The last request for reports is fresh, so another request writes nothing.
    await ask_for_reports(watched_stream.reading, watched_stream.transaction)
    async with watched_stream.reading() as session:
        assert await session.scalar(select(InstanceReport.looked_at)) == before


async def test_the_report_goes_with_its_instance(watched_stream: Database) -> None:
    await Reporter(watched_stream, FENCE.owner, lambda: [LIVE]).report()
    await Reporter(watched_stream, "h:1:killed", lambda: [LIVE]).report()
    async with watched_stream.transaction() as session:
        # A heartbeat deletes the reports of instances that are gone.
        await register_instance(session, FENCE.owner, kind="triggerer")
        found = list(await session.scalars(select(InstanceReport.instance_id)))
        await deregister_instance(session, FENCE.owner)
        assert found == [FENCE.owner]
        assert list(await session.scalars(select(InstanceReport))) == []


async def test_parts_that_own_nothing_show_their_heartbeat_and_sign_off(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "INTERVAL", timedelta(seconds=0.05))
    async with anyio.create_task_group() as tasks:
        await tasks.start(Presence(database, ["scheduler", "dag-processor"]).run)
        with anyio.fail_after(20):
            beats = set[object]()
            while len(beats) < 3:
                await anyio.sleep(0.02)
                async with database.reading() as session:
                    shown = await list_instances(session)
                beats |= {one.heartbeat_at for one in shown if one.kind == "scheduler"}
        assert [(one.kind, one.state, one.release) for one in shown] == [
            ("dag-processor", "running", release()),
            ("scheduler", "running", release()),
        ]
        assert all(one.pid for one in shown)
        tasks.cancel_scope.cancel()
    async with database.reading() as session:
        assert list(await session.scalars(select(Instance.id))) == []


async def test_the_service_is_healthy_while_every_part_has_a_heartbeat_in_time(
    database: Database,
) -> None:
    async with database.transaction() as session:
        for number, kind in enumerate(EXPECTED[1:]):
            await register_instance(session, f"elsewhere:{number}:a", kind=kind)
    found = await read_health(database.reading)
    assert not found.is_healthy
    assert [one.kind for one in found.parts if not one.is_healthy] == ["triggerer"]
    async with database.transaction() as session:
        await register_instance(session, "elsewhere:9:a", kind="triggerer")
        await register_instance(session, "elsewhere:8:a", kind="scheduler")
    found = await read_health(database.reading)
    assert found.is_healthy
    assert {one.kind: one.running for one in found.parts}["scheduler"] == 2
    async with database.transaction() as session:
        past = await database_now(session) - timedelta(seconds=1)
        await session.execute(
            update(Instance).where(Instance.kind == "executor").values(expires_at=past)
        )
    found = await read_health(database.reading)
    assert [one.kind for one in found.parts if not one.is_healthy] == ["executor"]
