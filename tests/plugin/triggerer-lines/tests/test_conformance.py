import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from triggerer_lines.producer import (
    Line,
    LinesSharedStreamProducer,
    load_positions,
    save_positions,
)
from triggerer_lines.watcher import LineEventTrigger

from triggerer.testing import Feature, ProducerConformance, StreamHarness, TriggerConformance


class TestLines(ProducerConformance):
    features = frozenset(Feature) - {Feature.LOCK_RENEWAL, Feature.PAUSE_LANES, Feature.QUEUE}

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        with (self.directory / f"{lane}.lines").open("a") as file:
            file.writelines(f"{value}\n" for value in values)

    async def new_producer(self) -> LinesSharedStreamProducer:
        return LinesSharedStreamProducer(
            self.directory, poll_s=0.01, max_deliveries=self.max_deliveries
        )

    async def dead_letters(self) -> list[str]:
        path = self.directory / "dead-letters.jsonl"
        entries = path.read_text().splitlines() if path.exists() else []
        return [json.loads(entry)["line"] for entry in entries]

    async def committed(self, lane: int = 0) -> int:
        _, end, _ = load_positions(self.directory).get(f"{lane}.lines", (0, 0, 0))
        return (self.directory / f"{lane}.lines").read_bytes()[:end].count(b"\n")

    def value_of(self, event: Line) -> str:
        return event.raw.decode()

    async def recreate(self) -> None:
        # Rename the files, as log rotation does. If they were deleted, a new file might get the inode of a deleted
        # file.
        for path in self.directory.glob("*.lines"):
            path.rename(path.with_suffix(".old"))

    async def seek(self, position: int, lane: int = 0) -> None:
        name = f"{lane}.lines"
        lines = (self.directory / name).read_bytes().splitlines(keepends=True)
        inode = (self.directory / name).stat().st_ino
        save_positions(self.directory, {name: (inode, len(b"".join(lines[:position])), 0)})


class TestLineEventTrigger(TriggerConformance):
    def new_trigger(self) -> LineEventTrigger:
        return LineEventTrigger("/var/lines", contains="error")

    def siblings(self) -> Sequence[LineEventTrigger]:
        return [LineEventTrigger("/var/lines")]

    def strangers(self) -> Sequence[LineEventTrigger]:
        return [LineEventTrigger("/var/other", contains="error")]

    def raw_events(self) -> Sequence[tuple[Any, int]]:
        return [(line(b"an error"), 1), (line(b"all is well"), 0), (line(b"error \xff"), 0)]


def line(raw: bytes) -> Line:
    return Line("a.lines", 1, 0, len(raw) + 1, raw, 0)


async def test_a_line_fires_and_is_consumed_once_its_event_is_durable(
    streams: StreamHarness, tmp_path: Path
) -> None:
    watcher = await streams.add(LineEventTrigger(str(tmp_path), contains="error"))
    (tmp_path / "a.lines").write_text("fine\nan error\n")
    while not watcher.events:
        await streams.quiesce()  # waits for the threads that read the files,
        await anyio.sleep(0.05)  # and this for the producer's own pause between two looks
    assert watcher.events[0].payload == {"line": "an error", "file": "a.lines", "offset": 5}
    assert watcher.error is None
