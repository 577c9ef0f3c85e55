"""Launches that ended runs have left behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from sqlalchemy import insert, select
from structlog.testing import capture_logs

from tests.ending_process import EndingProcess
from tests.executor.conftest import House
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import Launch
from triggerer.errors import RowRefused
from triggerer.executor import left_launches
from triggerer.store.database.script import Script
from triggerer.store.runs.attempts.open_launches import update_launches
from triggerer.store.schema.models import RunAttempt, RunLaunch

DEATH = "the process that ends launches has died"


async def _leave_launch(house: House, *launchers: str) -> None:
    """Store a failed run of a dead executor, with an open launch of each launcher; by default of Connect alone."""
    await house.add_dag("d", "")
    (pk,) = await house.queue("d", state="failed", executor="dead")
    now = datetime.now(UTC)
    attempt = {"run_pk": pk, "epoch": 1, "number": 1, "tag": "t", "executor": "dead"}
    attempt |= {"launcher": "connect", "state": "running", "intent_at": now, "seen_at": now}
    rows: list[dict[str, Any]] = [
        {"run_pk": pk, "epoch": 1, "tag": tag, "seen_at": now + place * timedelta(seconds=1)}
        | {"launcher": launcher, "state": "running"}
        for place, (tag, launcher) in enumerate(zip("tuv", launchers or ["connect"], strict=False))
    ]
    async with house.database.transaction() as session:
        await session.execute(insert(RunAttempt), [attempt])
        await session.execute(insert(RunLaunch), rows)


async def _ended_launch(house: House) -> RunLaunch:
    """Wait until the only launch has ended, and return its row."""
    ended = select(RunLaunch).where(RunLaunch.ended_at.is_not(None))
    with anyio.fail_after(20):
        while True:
            async with house.database.reading() as session:
                if (launch := await session.scalar(ended)) is not None:
                    return launch
            await anyio.sleep(0.05)


def _report(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Let each process that ends launches report this reason."""

    async def start(module: str) -> EndingProcess:
        launch = Launch("t", "connect", AttemptState.FAILED, datetime.now(UTC), reason=reason)
        return EndingProcess(launch)

    monkeypatch.setattr(left_launches, "ChildProcess", SimpleNamespace(start=start))


async def test_the_reason_of_a_clusters_end_is_stored_without_secrets_and_nul(
    any_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _leave_launch(any_house)
    _report(monkeypatch, "bad record 'a\0b', password=hunter22")
    async with any_house.executor():
        launch = await _ended_launch(any_house)
    assert (launch.state, launch.reason) == ("failed", "bad record 'a\\x00b', password=***")


async def test_a_refused_launch_does_not_end_the_executor(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _leave_launch(house)
    _report(monkeypatch, "a reason")
    refusals = 0

    def refuse_once(launches: Sequence[tuple[int, Launch]]) -> Script[None]:
        nonlocal refusals
        if refusals:
            return update_launches(launches)
        refusals += 1
        raise RowRefused("no")

    monkeypatch.setattr(left_launches, "update_launches", refuse_once)
    async with house.executor(sweep_every=timedelta(milliseconds=10)):
        launch = await _ended_launch(house)
    assert (launch.state, refusals) == ("failed", 1)


async def test_a_process_that_dies_while_it_ends_launches_is_logged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _leave_launch(house)
    # The process cannot read an order that has only a type.
    module = "triggerer.executor.left_launches"
    monkeypatch.setattr(f"{module}.message", lambda kind, **fields: {"type": kind})
    with capture_logs() as logs:
        async with house.executor():
            with anyio.fail_after(20):
                # Poll, because a log cannot be awaited.
                while not (deaths := [one for one in logs if one["event"] == DEATH]):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
    assert deaths[0]["code"] == 1


async def test_a_launcher_that_fails_does_not_keep_later_launches_from_their_end(
    house: House,
) -> None:
    # The settings name no standalone cluster, and the launch does not say where it is. So its launcher fails.
    await _leave_launch(house, "standalone", "connect")
    async with house.executor():
        with anyio.fail_after(60):
            while True:
                async with house.database.reading() as session:
                    query = select(RunLaunch).order_by(RunLaunch.tag)
                    first, second = await session.scalars(query)
                if second.state == "unknown":
                    break
                await anyio.sleep(0.1)
    assert first.state == "unknown"
    assert "the launcher standalone failed" in str(first.reason)
    assert "names no host" in str(second.reason)
