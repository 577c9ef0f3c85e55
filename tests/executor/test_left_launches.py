"""Launches that ended runs have left behind."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from sqlalchemy import insert
from structlog.testing import capture_logs

from tests.executor.conftest import House
from triggerer.store.schema.models import RunAttempt, RunLaunch

DEATH = "the process that ends launches has died"


async def test_a_process_that_dies_while_it_ends_launches_is_logged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.add_dag("d", "")
    (pk,) = await house.queue("d", state="failed", executor="dead")
    now = datetime.now(UTC)
    row: dict[str, Any] = {"run_pk": pk, "epoch": 1, "tag": "t", "seen_at": now}
    row |= {"launcher": "connect", "state": "running"}
    attempt = {"number": 1, "executor": "dead", "intent_at": now}
    async with house.database.transaction() as session:
        await session.execute(insert(RunAttempt), [row | attempt])
        await session.execute(insert(RunLaunch), [row])
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
