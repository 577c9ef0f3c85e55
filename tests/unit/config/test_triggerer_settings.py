"""The settings of the triggerer reach the runtime and the writer of parked messages."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from triggerer import hosting
from triggerer.config import load_settings
from triggerer.service import Part
from triggerer.service.parts import start_parts
from triggerer.service.status import Readiness
from triggerer.store.database.opening import open_database
from triggerer.store.watchers import parked_writer


class Tasks:
    """Starts nothing."""

    def start_soon(self, *_: Any) -> None: ...

    async def start(self, *_: Any) -> None: ...


class Host:
    """Stands for the host, and records its keyword arguments."""

    given: dict[str, Any]

    def __init__(self, *_: Any, **given: Any) -> None:
        Host.given = given

    async def run(self) -> None: ...


class Writer(parked_writer.ParkedWriter):
    given: dict[str, Any]

    def __init__(self, *arguments: Any, **given: Any) -> None:
        Writer.given = given
        super().__init__(*arguments, **given)


async def given(folder: Path, line: str) -> dict[str, Any]:
    """Return, by name, the settings that the parts get if the file has this line."""
    file = folder / "triggerer.toml"
    file.write_text(f"[core]\nhome = '{folder}'\n[triggerer]\n{line}\n")
    settings = load_settings(file, environ={})
    async with open_database(settings.database.url, create=True) as database:
        tasks = cast("Any", Tasks())
        parts = frozenset({Part.TRIGGERER})
        await start_parts(settings, parts, database, tasks, tasks, Readiness())
    runtime = Host.given["runtime"]
    return {
        "falls_behind": runtime.falls_behind,
        "parked_at_bound": runtime.parked_at_bound,
        "capacity": Host.given["settings"].capacity,
        **asdict(runtime.settings),
        **{f"parked: {name}": value for name, value in asdict(Writer.given["bounds"]).items()},
    }


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ('on_failure = "redeliver"', "falls_behind", False),
        ('parked_at_bound = "dead_letter"', "parked_at_bound", "dead_letter"),
        ("parked_max_messages = 7", "parked: max_messages", 7),
        ("parked_max_bytes = 7", "parked: max_bytes", 7),
        ("parked_total_bytes = 7", "parked: total_bytes", 7),
        ("max_deliveries = 7", "max_deliveries", 7),
        ("shared_stream_ack_timeout = 7", "ack_timeout", 7.0),
        ("shared_stream_subscriber_queue_size = 7", "subscriber_queue_size", 7),
        ("shared_stream_overflow_grace = 7", "overflow_grace", 7.0),
        ("max_outstanding_events = 7", "max_outstanding", 7),
        ("max_outstanding_events_per_lane = 7", "max_outstanding_per_lane", 7),
        ("max_outstanding_bytes = 7", "max_outstanding_bytes", 7),
        ("max_outstanding_bytes_per_lane = 7", "max_outstanding_bytes_per_lane", 7),
        ("capacity = 7", "capacity", 7),
    ],
)
async def test_a_setting_reaches_its_place_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, name: str, value: object
) -> None:
    monkeypatch.setattr(hosting, "TriggerHost", Host)
    monkeypatch.setattr(parked_writer, "ParkedWriter", Writer)
    before, after = await given(tmp_path, ""), await given(tmp_path, line)
    assert {one: after[one] for one in after if after[one] != before[one]} == {name: value}
