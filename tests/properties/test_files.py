"""Runs `FilesProducer` on real files that reuse the inodes and times of earlier files, with crashes at each step.

A set of idempotency keys stands in for the database's unique index. Each new content has a new size, so the size tells
which content a message is about.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triggerer.abc import AdvanceItem, AdvanceOutcome
from watchers.directory import FilesProducer, Sighting
from watchers.files.claiming import FoundFile

CLEAN = AdvanceOutcome(1, 0, 0)
FAILED = AdvanceOutcome(0, 1, 0)
STEPS = ("mkdir", "rename", "fsync", "unlink", "rmdir")


class Killed(BaseException):
    """The process ended here."""


class FilesMachine(RuleBasedStateMachine):
    """Checks that each appearance becomes one event and the file is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.root = Path(tempfile.mkdtemp())
        self.directory = self.root / "inbox"
        self.directory.mkdir()
        self.stored: dict[str, int] = {}
        """Idempotency keys, with the size of the appearance."""
        self.appeared: set[int] = set()
        self.size = 0
        self.links = 0
        self.template = self.root / "template"
        # The wait between scans ends when the test asks for the next file.
        self.sleep = mock.patch("anyio.sleep", self._sleep)
        self.sleep.start()
        self._start()

    def teardown(self) -> None:
        self.runner.run(self._kill())
        self.sleep.stop()
        self.runner.close()
        shutil.rmtree(self.root)

    def _start(self) -> None:
        self.producer = FilesProducer(self.directory, poke_interval=1)
        self.stream = cast("AsyncGenerator[Any, None]", self.producer.open_stream())
        self.open: list[FoundFile] = []
        self.pulling: asyncio.Task[Any] | None = None
        self.asleep = asyncio.Event()
        self.awake = asyncio.Event()

    async def _kill(self) -> None:
        if self.pulling is not None:
            self.pulling.cancel()
            await asyncio.wait([self.pulling])
        await self.stream.aclose()

    async def _sleep(self, _: float) -> None:
        self.awake.clear()
        self.asleep.set()
        await self.awake.wait()

    @precondition(lambda self: not (self.directory / "ready").exists())
    @rule(way=st.sampled_from(["write", "copy", "link", "move"]))
    def appear(self, way: str) -> None:
        path, template = self.directory / "ready", self.template
        if way != "link" or not template.exists():
            self.size += 1
            # Truncated in place: the inode stays.
            template.write_bytes(b"x" * self.size)
            os.utime(template, ns=(0, 1_700_000_000_000_000_000))
        match way:
            case "write":
                path.write_bytes(b"x" * self.size)
            case "copy":  # cp -p and mv, rsync -t, tar -x
                shutil.copy2(template, self.directory / "part")
                (self.directory / "part").rename(path)
            case "link":
                # The inode and the size repeat.
                path.hardlink_to(template)
            case "move":
                template.rename(path)
        if way != "link":
            self.appeared.add(self.size)
        else:
            self.links += 1

    async def _next(self) -> FoundFile | None:
        """The next file of the stream; None if three scans find no file."""
        scans = 0
        while True:
            if self.pulling is None:
                self.pulling = asyncio.ensure_future(anext(self.stream))
            sleeping = asyncio.ensure_future(self.asleep.wait())
            await asyncio.wait([self.pulling, sleeping], return_when=asyncio.FIRST_COMPLETED)
            sleeping.cancel()
            if self.asleep.is_set():
                if scans == 2:
                    return None
                scans += 1
                self.asleep.clear()
                self.awake.set()
                continue
            event, _ = await self.pulling
            self.pulling = None
            if isinstance(event, FoundFile):
                return event
            assert isinstance(event, Sighting)
            event.wanted |= event.names
            await self.producer.advance([AdvanceItem(event, CLEAN)])

    @rule()
    def deliver(self) -> None:
        found = self.runner.run(self._next())
        if found is not None:
            self.open.append(found)

    @precondition(lambda self: self.open)
    @rule()
    def store(self) -> None:
        self._store(self.open[0])

    def _store(self, found: FoundFile) -> None:
        key = self.producer.get_idempotency_key(found)
        assert key is not None
        self.stored.setdefault(key, found.size_bytes)

    @precondition(lambda self: self.open)
    @rule()
    def advance(self) -> None:
        found = self.open.pop(0)
        self._store(found)
        self.runner.run(self.producer.advance([AdvanceItem(found, CLEAN)]))

    @precondition(lambda self: self.open)
    @rule()
    def fail(self) -> None:
        self.runner.run(self.producer.advance([AdvanceItem(self.open.pop(0), FAILED)]))

    @rule()
    def crash(self) -> None:
        self.runner.run(self._kill())
        self._start()

    @rule(step=st.sampled_from(STEPS), count=st.integers(0, 3), is_done=st.booleans())
    def crash_at(self, step: str, count: int, is_done: bool) -> None:
        """Deliver, store and advance, and kill the process at call number `count + 1` of the `os` function `step`.

        If `is_done`, this call is performed before the process is killed.
        """
        left = count
        call = getattr(os, step)

        def killed(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                if is_done:
                    call(*args, **kwargs)
                raise Killed
            return call(*args, **kwargs)

        setattr(os, step, killed)
        try:
            found = self.runner.run(self._next())
            if found is not None:
                self._store(found)
                self.runner.run(self.producer.advance([AdvanceItem(found, CLEAN)]))
        except Killed:
            pass
        finally:
            setattr(os, step, call)
        self.crash()

    @invariant()
    def each_event_is_of_an_appearance(self) -> None:
        assert len(self.stored) <= self.count

    @property
    def count(self) -> int:
        return len(self.appeared) + self.links

    @rule()
    def settle(self) -> None:
        """Deliver the rest, and check that there are as many events as appearances and no files."""
        self.crash()
        while (found := self.runner.run(self._next())) is not None:
            self._store(found)
            self.runner.run(self.producer.advance([AdvanceItem(found, CLEAN)]))
        assert len(self.stored) == self.count
        assert not (self.directory / "ready").exists()


FilesMachine.TestCase.settings = settings(deadline=None)
TestFiles = FilesMachine.TestCase
