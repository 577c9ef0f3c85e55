"""JSON as release 0.1.0 stores and sends it, and the same JSON with keys that a later release may add.

During an upgrade, two releases read each other's JSON. So a text of `GOLDEN` may change only if the previous release
can read the new text. CONTRIBUTING.md has the rules for JSON in the database.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.run_orders import order
from triggerer.config.sections import SparkSettings
from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.attempts import Repeat, RunOrder, SparkProgress, StageProgress, TaskProgress
from triggerer.domain.conditions import condition_from_json, condition_to_json
from triggerer.domain.launches import FormerLaunch
from triggerer.domain.live_state import LaneLive, Pause, StreamHistory, StreamLive, stream_from_json
from triggerer.domain.runs import TaskState
from triggerer.domain.schedules import (
    OnAssets,
    OnBoth,
    OnTime,
    schedule_from_json,
    schedule_to_json,
)
from triggerer.domain.timetables import OnceTimetable

NEWER = "key_of_a_later_release"
ORDERS = Asset("s3://bucket/orders", name="orders")
DATE = datetime(2026, 3, 10, tzinfo=UTC)
ONCE = '{"type": "OnceTimetable", "arguments": {}}'
ASSET = '{"asset": {"name": "orders", "uri": "s3://bucket/orders"}}'
PROGRESS = SparkProgress(stages=2, stages_done=1, tasks=8, tasks_done=4)
LAUNCH = FormerLaunch("t", "yarn", 2, AttemptState.UNKNOWN, unknown_since=DATE)
ORDER = order(7, queued_at=DATE, run_after=DATE, former=(LAUNCH,), repeat=Repeat(after_attempt=1))
STREAM = StreamLive(
    stream_id="d", stream="kafka orders", system="kafka", epoch=2, consumed=9, advanced=8,
    rejected=1, failed=0, restarts=0, outstanding=1, outstanding_bytes=10, lag_messages=3,
    lag_seconds=0.5, behind=0, failing=0, triggers=1, paused=[Pause("lane_full", "0")], lane_count=1,
    lanes=[LaneLive("0", 1, 10, 0.5, None, is_full=True, lag_messages=3)],
    history=StreamHistory(60, (3,), (9,)),
)  # fmt: skip

Reader = Callable[[Any], Any]
GOLDEN: list[tuple[str, Reader, Reader, Any, str]] = [
    ("condition", condition_from_json, condition_to_json, ORDERS & AssetAlias("x"),
     '{"all": [' + ASSET + ', {"alias": "x"}]}'),
    ("timetable", schedule_from_json, schedule_to_json, OnTime(OnceTimetable()),
     '{"timetable": ' + ONCE + "}"),
    ("both", schedule_from_json, schedule_to_json, OnBoth(OnceTimetable(), ORDERS),
     '{"both": {"timetable": ' + ONCE + ', "assets": ' + ASSET + "}}"),
    ("assets", schedule_from_json, schedule_to_json, OnAssets(ORDERS), ASSET),
    ("repeat", Repeat.from_json, Repeat.to_json,
     Repeat({"a": TaskState.SUCCESS}, {"b": 1}, after_attempt=2, after_epoch=3),
     '{"kept": {"a": "success"}, "cleared": {"b": 1}, "after_attempt": 2, "after_epoch": 3}'),
    ("spark settings", SparkSettings.from_json, SparkSettings.to_json,
     SparkSettings(mode="local", cluster_patience=timedelta(seconds=5)),
     ('{"mode": "local", "master": null, "remote": null, "conf": {}, "cluster_patience": 5.0,'
     ' "archive_classes": true}')),
]  # fmt: skip


def _with_newer_keys(value: Any) -> Any:
    """Add a key to each object, as a later release may. Leave out objects whose keys are names, such as parameters."""
    if isinstance(value, list):
        return [_with_newer_keys(one) for one in value]
    if not isinstance(value, dict):
        return value
    added = {
        key: one
        if key in ("kept", "cleared", "arguments", "conf", "params")
        else _with_newer_keys(one)
        for key, one in value.items()
    }
    return added | {NEWER: {"a": 1}}


@pytest.mark.parametrize(
    ("read", "write", "value", "golden"),
    [row[1:] for row in GOLDEN],
    ids=[row[0] for row in GOLDEN],
)
def test_what_release_0_1_0_stores_is_read_with_and_without_keys_of_a_later_release(
    read: Reader, write: Reader, value: Any, golden: str
) -> None:
    assert json.loads(json.dumps(write(value))) == json.loads(golden)
    assert read(json.loads(golden)) == value
    assert read(_with_newer_keys(json.loads(golden))) == value


def test_progress_and_reports_are_read_without_keys_of_a_later_release() -> None:
    progress = TaskProgress(PROGRESS, (StageProgress(3, "count", DATE, None, 8, 4),))
    newer = _with_newer_keys(json.loads(progress.to_text()))
    assert TaskProgress.from_text(json.dumps(newer)) == progress
    report = _with_newer_keys(json.loads(json.dumps(asdict(STREAM))))
    assert stream_from_json(report) == STREAM


def test_orders_are_read_without_keys_of_a_later_release() -> None:
    sent = json.loads(json.dumps(asdict(ORDER), default=datetime.isoformat))
    assert RunOrder.from_json(_with_newer_keys(sent)) == ORDER
