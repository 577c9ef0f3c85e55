"""The producers of `FilePatternTrigger`.

`MovingProducer` moves the files that fire. `RememberingProducer` leaves files in place, and stores which files have
fired.

A scan has these steps:

1. Find the files that can fire: the previous scan found them with the same inode, size and time of modification.
2. If there are any, broadcast a `PatternSighting`, to which each filter adds its pattern. Each scan asks again, so a
   filter also gets files that were there before it joined.
3. Deliver the files that match a pattern.
"""

from __future__ import annotations

import errno
import logging
import os
from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import CapacityLimiter, to_thread

from triggerer.abc import AdvanceItem, SharedStreamProducer, StreamState
from triggerer.errors import BrokerRefused
from triggerer.pluginkit.texts import text_of
from watchers.files import moving
from watchers.files.appeared import AppearedFile, PatternSighting, SeenFile, scan
from watchers.files.name_patterns import NamePattern, matching
from watchers.files.remembering import Memory, appeared, digests_of

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 500
"""The most files that are moved before the first of them fires."""
_MAY_MOVE: Final = os.R_OK | os.W_OK | os.X_OK


class _PatternProducer(SharedStreamProducer):
    """Scans a directory, and delivers the files that match a pattern and have not changed since the previous scan.

    A subclass claims and finishes files.
    """

    def __init__(self, directory: Path, *, poke_interval: float) -> None:
        self._directory = directory
        self._poke_interval = poke_interval
        self._before: Mapping[str, SeenFile] = {}
        """The files of the previous scan."""
        self._in_flight: set[str] = set()
        """The idempotency keys of the files that were delivered and not advanced."""
        self._is_readable = True
        # A limiter of our own: a file system that hangs must not use up the threads of other streams.
        self._threads = CapacityLimiter(2)

    async def open_stream(
        self,
    ) -> AsyncIterator[tuple[PatternSighting | AppearedFile, PatternSighting | AppearedFile]]:
        """If a scan finds files that can fire, yield a `PatternSighting`, and then the files that fire."""
        while True:
            steady = await self._scan()
            if steady or await self._has_pending():
                sighting = PatternSighting()
                yield sighting, sighting
                await sighting.answered.wait()
                patterns = [NamePattern(pattern) for pattern in sorted(sighting.patterns)]
                async for file in self._claim(steady, patterns):
                    self._in_flight.add(file.idempotency_key)
                    yield file, file
            await anyio.sleep(self._poke_interval)

    async def _scan(self) -> list[SeenFile]:
        """Return the files that have not changed since the previous scan, oldest first.

        While the directory cannot be read, no file is returned. The error is logged once.
        """
        try:
            found: dict[str, SeenFile] = await self._in_thread(scan, self._directory)
        except OSError as error:
            if self._is_readable:
                logger.warning(
                    "waiting for directory %s, which cannot be read: %s",
                    self._directory,
                    error.strerror,
                )
            self._is_readable = False
            return []
        if not self._is_readable:
            logger.info("directory %s can be read now", self._directory)
        self._is_readable = True
        before, self._before = self._before, found
        await self._forget(found)
        steady = [file for name, file in found.items() if before.get(name) == file]
        return sorted(steady, key=lambda file: (file.modified_ns, file.name))

    async def _forget(self, found: Mapping[str, SeenFile]) -> None:
        """Forget the files that are gone."""

    async def _has_pending(self) -> bool:
        """Return whether files that were claimed at an earlier scan may have to be delivered now."""
        return False

    @abstractmethod
    def _claim(
        self, steady: Sequence[SeenFile], patterns: Sequence[NamePattern]
    ) -> AsyncIterator[AppearedFile]:
        """Yield the files that match and are not in flight, each once it is claimed."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        try:
            for payload, outcome in batch:
                if isinstance(payload, PatternSighting):
                    payload.answered.set()
                elif outcome.is_clean:
                    await self._finish(payload)
                elif outcome.rejected and not outcome.failed:
                    await self._reject(payload)
            await self._save()
        finally:
            for payload, _ in batch:
                if isinstance(payload, AppearedFile):
                    self._in_flight.discard(payload.idempotency_key)

    @abstractmethod
    async def _finish(self, file: AppearedFile) -> None:
        """Finish a file whose events are durable."""

    @abstractmethod
    async def _reject(self, file: AppearedFile) -> None:
        """Finish a file that the filters have rejected, so that it does not fire again."""

    async def _save(self) -> None:
        """Make the effects of `_finish` and `_reject` on a batch durable."""

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await to_thread.run_sync(
            function, *arguments, limiter=self._threads, abandon_on_cancel=True
        )

    def get_advance_lane(self, broker_payload: PatternSighting | AppearedFile) -> Hashable:
        """Return a lane for each file, so that a failed file does not delay others."""
        if isinstance(broker_payload, PatternSighting):
            return None
        return text_of(os.fsencode(broker_payload.name))

    def get_idempotency_key(self, broker_payload: PatternSighting | AppearedFile) -> str | None:
        if isinstance(broker_payload, PatternSighting):
            return None
        return broker_payload.idempotency_key

    async def aclose(self) -> None:
        """Do nothing: the producer has no resources."""


class MovingProducer(_PatternProducer):
    """Moves each file to another folder before it fires; see `watchers.files.moving`."""

    def __init__(self, directory: Path, *, move_to: Path, poke_interval: float) -> None:
        super().__init__(directory, poke_interval=poke_interval)
        self._move_to = move_to
        self._pending = moving.Pending()
        self._immovable: set[str] = set()

    async def _has_pending(self) -> bool:
        try:
            self._pending = await self._in_thread(moving.pending, self._directory)
        except OSError:
            # Ignore the error: `_scan` logs a directory that cannot be read.
            self._pending = moving.Pending()
        self._pending.moved = [
            file for file in self._pending.moved if file.idempotency_key not in self._in_flight
        ]
        return bool(self._pending.moved)

    async def _claim(
        self, steady: Sequence[SeenFile], patterns: Sequence[NamePattern]
    ) -> AsyncIterator[AppearedFile]:
        # First yield the files that were moved after earlier scans, and not released since the last listing.
        await self._has_pending()
        for file in self._pending.moved:
            if matching(file.name, patterns):
                yield file
        wanted = [file for file in steady if matching(file.name, patterns)]
        failures: dict[str, OSError] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            moved, failed = await self._move(some)
            failures |= failed
            for file in moved:
                yield file
        await self._report_failures(failures)

    async def _move(
        self, files: Sequence[SeenFile]
    ) -> tuple[list[AppearedFile], dict[str, OSError]]:
        try:
            result: tuple[list[AppearedFile], dict[str, OSError]] = await self._in_thread(
                moving.move, self._directory, self._move_to, files, self._pending.intended
            )
        except FileNotFoundError:
            return [], {}  # the directory has gone since it was read
        except OSError as error:
            raise BrokerRefused(
                f"files cannot be moved from the directory {self._directory} to {self._move_to}: {error}",
                hint='give the user of the service the right to write in both, or set claim="remember"',
            ) from error
        return result

    async def _report_failures(self, failures: Mapping[str, OSError]) -> None:
        """Log each file that could not be moved, once.

        Raises:
            BrokerRefused: No file of the directory can be moved.
        """
        if any(error.errno == errno.EXDEV for error in failures.values()):
            raise BrokerRefused(
                f"{self._move_to} is on another file system than {self._directory}",
                hint='name a folder on the same file system as move_to, or write claim="remember"',
            )
        if failures and not await self._in_thread(os.access, self._directory, _MAY_MOVE):
            raise BrokerRefused(
                f"files in the directory {self._directory} cannot be moved by this user",
                hint="give the user of the service the right to write in the directory",
            )
        for name in failures.keys() - self._immovable:
            # Some files cannot be moved, for example a file of another user. The other files continue.
            logger.error(
                "%s cannot be moved, so it does not fire: %s",
                self._directory / name,
                failures[name],
            )
        self._immovable = set(failures)

    async def _finish(self, file: AppearedFile) -> None:
        try:
            await self._in_thread(moving.release, self._directory, file)
        except OSError as error:
            # The store has the file's key, so the file does not fire again. Each scan tries again to delete the marker.
            logger.error("the marker of %s cannot be deleted: %s", file.path, error)

    async def _reject(self, file: AppearedFile) -> None:
        try:
            aside = await self._in_thread(moving.reject, self._directory, file)
        except FileNotFoundError:
            logger.info("%s was rejected and is gone already", file.path)
            await self._finish(file)
        except OSError as error:
            logger.error("%s was rejected, and cannot be moved aside: %s", file.path, error)
            await self._finish(file)
        else:
            logger.warning("%s was rejected; it is now at %s", file.path, aside)


class RememberingProducer(_PatternProducer):
    """Leaves the files in place, and stores which files have fired. See `watchers.files.remembering`."""

    def __init__(self, directory: Path, *, poke_interval: float) -> None:
        super().__init__(directory, poke_interval=poke_interval)
        self._state: StreamState | None = None
        self._memory = Memory(directory, None)
        self._is_changed = False

    def use_state(self, state: StreamState) -> None:
        self._state = state
        self._memory = Memory(self._directory, state.value)

    async def _forget(self, found: Mapping[str, SeenFile]) -> None:
        self._memory.forget_all_but(await self._in_thread(digests_of, found.values()))

    async def _claim(
        self, steady: Sequence[SeenFile], patterns: Sequence[NamePattern]
    ) -> AsyncIterator[AppearedFile]:
        for file in await self._in_thread(self._new_files, steady, patterns):
            yield file

    def _new_files(
        self, steady: Collection[SeenFile], patterns: Sequence[NamePattern]
    ) -> list[AppearedFile]:
        return list(self._find_new(steady, patterns))

    def _find_new(
        self, steady: Collection[SeenFile], patterns: Sequence[NamePattern]
    ) -> Iterator[AppearedFile]:
        for file in steady:
            if new_for := self._memory.new_for(file, matching(file.name, patterns)):
                found = appeared(self._directory, file, new_for)
                if found.idempotency_key not in self._in_flight:
                    yield found

    async def _finish(self, file: AppearedFile) -> None:
        self._memory.add(file)
        self._is_changed = True

    async def _reject(self, file: AppearedFile) -> None:
        logger.warning("%s was rejected; it does not fire until it changes", file.path)
        await self._finish(file)

    async def _save(self) -> None:
        if self._is_changed and self._state is not None:
            await self._state.save(self._memory.dump())
            self._is_changed = False
