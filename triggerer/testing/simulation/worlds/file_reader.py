"""Reads the DAG files of the simulated world.

The product's own code decides which files count as deleted, and which streams wait for files.
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from triggerer.domain.dag_files.missing_files import judge_missing
from triggerer.domain.dag_files.new_streams import closings
from triggerer.store.database.wakeups.signals import Signal
from triggerer.synchronization import AutoResetEvent

if TYPE_CHECKING:
    from triggerer.testing.simulation.database.transactions import Database
    from triggerer.testing.simulation.worlds.files import Files
    from triggerer.testing.simulation.worlds.world import World

GRACE: Final = timedelta(seconds=10)
"""The time after which a missing file counts as deleted. A file that is being replaced is missing for a shorter time.
"""
_LONGEST_AWAY_S: Final = 3.0
LIMIT: Final = timedelta(seconds=600)
"""The longest time for which a stream may wait for files. No stream of the simulation waits that long."""
_PATIENCE_AT_START_S: Final = 1.0
_DEBOUNCE_S: Final = 0.4


class FileReader:
    """Reads the files and stores their watchers as `DagProcessor` does. No faults are injected."""

    def __init__(self, world: World, files: Files, database: Database) -> None:
        self._world = world
        self._files = files
        self._database = database
        self._seen: dict[str, int] = {}
        self._unread: dict[str, int] = {}
        self._parsed: set[str] = set()
        self._vanished: dict[str, float] = {}
        """For each file that disappeared before it was stored: the time until which the reader waits for the file."""
        self._gone_at: dict[str, float] = {}
        """For each file that was seen and is missing now: the time at which the reader first missed the file."""
        self._is_look_due = False
        self._due = math.inf
        self._news = AutoResetEvent()
        files.is_reading = lambda: self.is_reading
        files.on_change = self.record_change

    @property
    def is_reading(self) -> bool:
        # Not `anyio.current_time`, which needs a task: the supervisor reads this property outside any task.
        now = asyncio.get_running_loop().time()
        is_replaced = any(until > now for until in self._vanished.values())
        return bool(self._unread) or self._is_look_due or is_replaced

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Read until cancelled.

        The task counts as started when all files that can be read within a second are stored.
        """
        async with anyio.create_task_group() as tasks:
            for path, file in self._files.by_path.items():
                if file.back_at is not None:
                    tasks.start_soon(self._write_again, path, file.back_at)
            self._look(tasks)
            with anyio.move_on_after(_PATIENCE_AT_START_S):
                while self.is_reading:
                    await self._news.wait()
            await self._store(is_start=True)
            task_status.started()
            tasks.start_soon(self._deploy, tasks)
            while True:
                with anyio.CancelScope(deadline=min((self._due, *self._vanished.values()))):
                    await self._news.wait()
                now = anyio.current_time()
                self._vanished = {p: until for p, until in self._vanished.items() if until > now}
                await self._store()

    def record_change(self) -> None:
        """Record that files were written or deleted. The folder is then scanned soon."""
        self._is_look_due = True
        self._news.set()

    # Reading

    def _look(self, tasks: TaskGroup) -> None:
        self._is_look_due = False
        there = {p: f.version for p, f in self._files.by_path.items() if f.back_at is None}
        for path, version in there.items():
            if self._seen.get(path) != version:
                self._unread[path] = version
                self._parsed.discard(path)
                tasks.start_soon(self._read, path, version, self._files.by_path[path].import_s)
        for path in there:
            self._gone_at.pop(path, None)
        for path in self._seen.keys() - there.keys():
            self._gone_at[path] = anyio.current_time()
            self._unread.pop(path, None)
            if path in self._files.by_path and path not in self._files.stored:
                self._vanished[path] = anyio.current_time() + GRACE.total_seconds()
            self._parsed.discard(path)
        self._seen = there
        self._vanished = {p: until for p, until in self._vanished.items() if p not in there}
        self._news.set()

    async def _read(self, path: str, version: int, import_s: float) -> None:
        await asyncio.sleep(import_s)
        if self._unread.get(path) == version:
            del self._unread[path]
            self._parsed.add(path)
            self._news.set()

    # Storing

    async def _store(self, *, is_start: bool = False) -> None:
        await self._database.until_unshared()
        if not self._database.is_alive:
            return
        world, files, store = self._world, self._files, self._world.store
        now = store.now()
        missing = {path: since for path, since in files.stored.items() if path not in self._seen}
        gone_for = {
            path: timedelta(seconds=anyio.current_time() - gone_at)
            for path, gone_at in self._gone_at.items()
        }
        judged = judge_missing(missing, now=now, grace=GRACE, gone_for=gone_for)
        self._due = math.inf
        if judged.next_in is not None:
            self._due = anyio.current_time() + judged.next_in.total_seconds()
        changed = {self._withdraw(path) for path in sorted(judged.deleted)}
        files.stored.update(dict.fromkeys(files.stored.keys() & self._seen.keys()))
        files.stored.update(judged.away)
        new = set[str]()
        for path in sorted(self._parsed):
            file = files.by_path.get(path)
            if file is not None and path not in files.stored:
                files.stored[path] = None
                key = file.stream.key
                if not file.stream.watchers and store.owners.leases[key][1] == 0:
                    new.add(key)
                world.declare(file.stream, file.declared)
                changed.add(key)
        for key in new:
            # Several files may declare a new stream. The stream's first message must go to the watchers of all files
            # that were seen up to now.
            stream = world.stream(key)
            world.checker.owe(key, {one for one in files.of(stream) if f"{one}.py" in self._seen})
        if is_start:
            self._forgive_unread()
        never_claimed = {
            stream.key: store.closed_until.get(stream.key)
            for stream in world.streams
            if stream.watchers and store.owners.leases[stream.key][1] == 0
        }
        closing = closings(
            never_claimed,
            new=new,
            is_reading=self.is_reading,
            is_start=is_start,
            now=now,
            limit=LIMIT,
        )
        store.closed_until.update(closing)
        world.trace("files stored", changed=sorted(changed), closed=closing)
        if changed or closing:
            self._database.wakeups.publish(Signal.STREAMS_CHANGED, *sorted(changed | set(closing)))

    def _forgive_unread(self) -> None:
        """Require nothing for the watchers of files that are missing at the start and were never stored."""
        known = self._seen.keys() | self._files.stored.keys()
        for path, file in self._files.by_path.items():
            if path not in known:
                self._world.checker.forgive(file.stream.key, file.declared.ref.watcher_id)

    def _withdraw(self, path: str) -> str:
        """Remove the file's watcher, and return the key of its stream."""
        del self._files.stored[path]
        watcher = int(path.removesuffix(".py"))
        stream = next(one for one in self._world.streams if watcher in one.watchers)
        self._world.withdraw(stream, watcher)
        if not stream.watchers:
            # The stream's row is deleted. So if the stream is declared again, it is a new stream.
            self._world.store.closed_until.pop(stream.key, None)
        return stream.key

    # Changes of the files

    async def _deploy(self, tasks: TaskGroup) -> None:
        """Scan the folder after changes. Now and then, replace a file: delete it, and write it again later."""
        rng, files = self._files.random, self._files
        replaced_at = anyio.current_time() + rng.expovariate(0.1)
        while True:
            await asyncio.sleep(_DEBOUNCE_S)
            if self._is_look_due:
                self._look(tasks)
            there = sorted(p for p, f in files.by_path.items() if f.back_at is None)
            if self._world.faults.are_over or anyio.current_time() < replaced_at or not there:
                continue
            replaced_at = anyio.current_time() + rng.expovariate(0.1)
            path = rng.choice(there)
            self._world.trace("is being replaced", file=path)
            back_at = anyio.current_time() + rng.uniform(0.1, _LONGEST_AWAY_S)
            files.by_path[path].back_at = back_at
            self.record_change()
            tasks.start_soon(self._write_again, path, back_at)

    async def _write_again(self, path: str, back_at: float) -> None:
        await anyio.sleep_until(back_at)
        file = self._files.by_path.get(path)
        if file is not None:
            file.version += 1
            file.back_at = None
            self._world.trace("is there again", file=path)
            self.record_change()
