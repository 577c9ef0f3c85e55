"""The texts of clusters in the frames of a run are storable and show no secrets."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.run_orders import order
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import RunOrder, Wait
from triggerer.domain.launches import Launch
from triggerer.executor.launch_queries import store_launch
from triggerer.executor.slots.worker_frames import read_run_frame

NOW = datetime(2026, 9, 21, tzinfo=UTC)
TEXT = "bad record 'a\0b', password=hunter22"
STORABLE = "bad record 'a\\x00b', password=***"


def _launch(reason: str | None) -> Launch:
    return Launch("t\0", "yarn", AttemptState.FAILED, NOW, external_id="app\0", reason=reason)


@pytest.mark.parametrize(("reason", "stored"), [(TEXT, STORABLE), (None, None)])
def test_the_texts_of_a_reported_launch_are_storable(
    reason: str | None, stored: str | None
) -> None:
    frame = read_run_frame({"type": "launch", "run": 1, "launch": asdict(_launch(reason))})
    assert frame["type"] == "launch"
    launch = frame["launch"]
    assert (launch.tag, launch.external_id, launch.reason) == ("t\\x00", "app\\x00", stored)
    assert (launch.place, launch.link, launch.task_id) == (None, None, None)


@pytest.mark.parametrize(("reason", "stored"), [(TEXT, STORABLE), (None, None)])
def test_the_reason_of_a_reported_wait_is_storable(reason: str | None, stored: str | None) -> None:
    frame = read_run_frame({"type": "waiting", "run": 1, "wait": asdict(Wait(reason, NOW))})
    assert frame["type"] == "waiting"
    assert frame["wait"] == Wait(stored, NOW)


async def test_the_texts_of_a_launch_that_is_stored_before_it_begins_are_storable() -> None:
    stored: list[Launch] = []

    class Writer:
        async def store_launch(self, _: RunOrder, launch: Launch) -> bool:
            stored.append(launch)
            return True

    fields = {"launch": asdict(_launch(TEXT))}
    query: Any = {"type": "query", "run": 1, "number": 1, "what": "launch", "fields": fields}
    writer: Any = Writer()

    reply = await store_launch(writer, order(1, 1), query)
    assert reply["error"] is None
    assert [launch.reason for launch in stored] == [STORABLE]
