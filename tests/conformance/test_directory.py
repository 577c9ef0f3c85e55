"""Runs the conformance suite on the producers that read files. Each file is a lane, so files have no order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from triggerer.abc import SharedStreamProducer
from triggerer.testing import Feature, ProducerConformance
from watchers.directory import FilesProducer, Sighting
from watchers.files.appeared import AppearedFile, PatternSighting, scan
from watchers.files.claiming import FoundFile, list_names
from watchers.files.moving import pending
from watchers.files.producers import MovingProducer, RememberingProducer
from watchers.files.remembering import Memory


class TestFilesOfDirectory(ProducerConformance):
    # Without lanes: the suite publishes several messages to a lane, but here a lane is one file.
    features = frozenset({Feature.REDELIVERY, Feature.IDEMPOTENCY})

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.published: set[str] = set()

    @pytest.mark.rule("S10: a rejected message comes once, a failed one until it is parked")
    def test_a_rejected_message_does_not_come_again(self) -> None:
        super().test_a_rejected_message_does_not_come_again()

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        for value in values:
            (self.directory / value).touch()
        self.published.update(values)

    async def new_producer(self) -> SharedStreamProducer:
        return FilesProducer(self.directory, poke_interval=0.01)

    async def committed(self, lane: int = 0) -> int:
        return len(self.published - list_names(self.directory))

    def value_of(self, event: Any) -> str | None:
        if isinstance(event, Sighting):
            # Ask for the files, as a filter does.
            event.wanted |= event.names
            return None
        assert isinstance(event, FoundFile)
        return event.path.name


class _FilesOfPattern(ProducerConformance):
    """The common hooks for the producers of `FilePatternTrigger`."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.published: set[str] = set()

    async def publish(self, values: Sequence[str], lane: int = 0) -> None:
        for value in values:
            (self.directory / value).touch()
        self.published.update(values)

    def value_of(self, event: Any) -> str | None:
        if isinstance(event, PatternSighting):
            # Ask for the files, as a filter does.
            event.patterns.add("*")
            return None
        assert isinstance(event, AppearedFile)
        return event.name


class TestMovedFilesOfPattern(_FilesOfPattern):
    features = frozenset({Feature.REDELIVERY, Feature.IDEMPOTENCY})

    @pytest.mark.rule("S10: a rejected message comes once, a failed one until it is parked")
    def test_a_rejected_message_does_not_come_again(self) -> None:
        super().test_a_rejected_message_does_not_come_again()

    async def new_producer(self) -> SharedStreamProducer:
        return MovingProducer(
            self.directory, move_to=self.directory / "processed", poke_interval=0.01
        )

    async def committed(self, lane: int = 0) -> int:
        there = {path.name for path in self.directory.iterdir() if path.is_file()}
        return len(self.published - there - {file.name for file in pending(self.directory).moved})


class TestRememberedFilesOfPattern(_FilesOfPattern):
    features = frozenset({Feature.REDELIVERY, Feature.IDEMPOTENCY, Feature.STATE})

    async def new_producer(self) -> SharedStreamProducer:
        return RememberingProducer(self.directory, poke_interval=0.01)

    async def committed(self, lane: int = 0) -> int:
        memory = Memory(self.directory, self.state.value)
        seen = scan(self.directory).values()
        return sum(not memory.new_for(file, ["*"]) for file in seen)
