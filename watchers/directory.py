"""Creates asset events for files that appear in a directory, and deletes the files.

- A file is claimed before its event is created, and deleted after the event is durable; see `claiming.py`. If the
  service stops in between, a later scan finds the claimed file, and uses the same idempotency key.
- The watchers do not wait until a file is complete. So write a file under another name, and rename the complete file.
- The triggers here reject no file, but the filter of a subclass may. A rejected file is moved into the folder
  `.rejected` of the directory, which no scan reads.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Collection, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import CapacityLimiter, to_thread

from triggerer.abc import (
    AdvanceItem,
    BaseEventTrigger,
    DeliveryFacts,
    Finding,
    SharedStreamProducer,
    TriggerEvent,
)
from triggerer.errors import BrokerRefused, BrokerUnavailable, DagError
from watchers.files.appeared import time_text
from watchers.files.arguments import interval_argument, path_argument, refuse_pattern
from watchers.files.claiming import REJECTED, FoundFile, claim, delete, list_names, set_aside
from watchers.files.pattern import FilePatternTrigger

__all__ = [
    "DirectoryFileDeleteTrigger",
    "FileDeleteTrigger",
    "FilePatternTrigger",
    "FilesProducer",
    "Sighting",
]

logger = logging.getLogger(__name__)

_MAY_CLAIM: Final = os.R_OK | os.W_OK | os.X_OK
_LET_WRITE: Final = "give the user of the service the right to write in the directory"


class Sighting:
    """A raw event with the names of a directory's files.

    Each filter adds to `wanted` the name that it waits for. The files in `wanted` are delivered next.
    """

    __slots__ = ("answered", "names", "wanted")

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.wanted: set[str] = set()
        self.answered = anyio.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        # Refuse copies: names that are added to a copy would be lost, and no file would ever fire.
        raise TypeError("a filter has to change a Sighting in place, so it cannot be copied")


class FilesProducer(SharedStreamProducer):
    """Scans a directory, claims and delivers the files that subscribers wait for, and deletes them.

    - Each scan that finds files first broadcasts a `Sighting`, to which the filters add the names that they want. So a
      subscriber also receives files that were there before it joined.
    - A failed file stays claimed, and is delivered again at the next scan.
    - A rejected file is moved into `.rejected`.

    Args:
        only: The name of the only file to look for. With a name, no `Sighting` is broadcast. None: look for all files.
    """

    def __init__(self, directory: Path, *, only: str | None = None, poke_interval: float) -> None:
        self._directory = directory
        self._only = only
        self._poke_interval = poke_interval
        self._in_flight: dict[str, set[str]] = {}
        """The claims that were delivered and not advanced, by name. Scans leave these names out."""
        self._undeletable: dict[str, bool] = {}
        """The resolved files that could not be removed, by claim. The value is True if the file was rejected."""
        self._unclaimable: set[str] = set()
        self._is_readable = True
        # A limiter of our own: a file system that hangs must not use up the threads of other streams.
        self._threads = CapacityLimiter(2)

    async def open_stream(self) -> AsyncIterator[tuple[Sighting | FoundFile, Any]]:
        """Yield a `Sighting` of the names in the directory. Then claim and yield the files that the filters want.

        Raises:
            BrokerRefused: There are files, and this user may not rename them.
        """
        while True:
            wanted = await self._look()
            if wanted and self._only is None:
                sighting = Sighting(wanted)
                yield sighting, sighting
                await sighting.answered.wait()
                wanted &= sighting.wanted
            if wanted:
                for found in await self._claim(wanted):
                    self._in_flight.setdefault(found.path.name, set()).add(found.claim)
                    yield found, found
            await anyio.sleep(self._poke_interval)

    async def _look(self) -> set[str]:
        """Return the names that may be delivered.

        While the directory cannot be read, the result is empty. The error is logged once.
        """
        try:
            names: set[str] = await self._in_thread(list_names, self._directory, self._only)
        except OSError as error:
            if self._is_readable:
                logger.warning(
                    "waiting for directory %s, which cannot be read: %s",
                    self._directory,
                    error.strerror,
                )
            self._is_readable = False
            return set()
        if not self._is_readable:
            logger.info("directory %s can be read now", self._directory)
        self._is_readable = True
        return names - self._in_flight.keys()

    async def _claim(self, names: Collection[str]) -> list[FoundFile]:
        found: list[FoundFile]
        failures: dict[str, OSError]
        claiming = partial(claim, self._directory, names)
        found, failures = await self._in_thread(claiming)
        if failures and not await self._in_thread(os.access, self._directory, _MAY_CLAIM):
            raise BrokerRefused(
                f"files in the directory {self._directory} cannot be renamed and deleted",
                hint=_LET_WRITE,
            )
        for name in failures.keys() - self._unclaimable:
            # Some files cannot be claimed, for example a file of another user. The other files continue.
            logger.error(
                "%s cannot be claimed (renamed), so it does not fire: %s",
                self._directory / name,
                failures[name],
            )
        self._unclaimable = set(failures)
        resolved = [file for file in found if file.claim in self._undeletable]
        for file in resolved:
            await self._take_away(file, is_rejected=self._undeletable[file.claim])
        return [file for file in found if file not in resolved]

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for payload, outcome in batch:
            if isinstance(payload, Sighting):
                payload.answered.set()
                continue
            try:
                if outcome.is_clean:
                    await self._take_away(payload, is_rejected=False)
                elif outcome.rejected and not outcome.failed:
                    logger.warning("%s was rejected; it goes into %s", payload.path, REJECTED)
                    await self._take_away(payload, is_rejected=True)
            finally:
                claims = self._in_flight.get(payload.path.name, set())
                claims.discard(payload.claim)
                if not claims:
                    self._in_flight.pop(payload.path.name, None)

    async def _take_away(self, found: FoundFile, *, is_rejected: bool) -> None:
        try:
            await self._in_thread(set_aside if is_rejected else delete, found)
        except FileNotFoundError:
            logger.info("%s no longer exists; somebody else removed it", found.claimed)
        except OSError as error:
            # Remember the file, so that each scan tries again to remove the file instead of delivering it.
            if found.claim not in self._undeletable:
                logger.error("%s cannot be removed: %s", found.claimed, error.strerror)
            self._undeletable[found.claim] = is_rejected
            return
        if self._undeletable.pop(found.claim, None) is not None:
            logger.info("%s is removed now", found.claimed)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        return await to_thread.run_sync(
            function, *arguments, limiter=self._threads, abandon_on_cancel=True
        )

    def get_advance_lane(self, broker_payload: Sighting | FoundFile) -> Hashable:
        """Return a lane for each file, so that a failed file does not delay others."""
        return None if isinstance(broker_payload, Sighting) else broker_payload.path.name

    def get_idempotency_key(self, broker_payload: Sighting | FoundFile) -> str | None:
        return None if isinstance(broker_payload, Sighting) else broker_payload.idempotency_key

    async def aclose(self) -> None:
        """Do nothing: there are no resources. Claimed files stay claimed, and the next producer finds them."""


class _FileDeleteTrigger(BaseEventTrigger):
    """The common base class of `DirectoryFileDeleteTrigger` and `FileDeleteTrigger`."""

    def __init__(self, directory: Path, filename: str, poke_interval: float) -> None:
        self._directory = directory
        self._filename = filename
        self.poke_interval = interval_argument(poke_interval)

    async def check_source(self) -> None:
        try:
            await to_thread.run_sync(list_names, self._directory, None, abandon_on_cancel=True)
        except OSError as error:
            # Do not raise `BrokerRefused`: the directory may exist on the service's machine, or may be created later.
            # The service waits for the directory.
            raise BrokerUnavailable(
                f"the directory {self._directory} cannot be read: {error.strerror}",
                hint="the watcher waits for it, and is shown as running",
            ) from error
        if not os.access(self._directory, _MAY_CLAIM):
            # Do not raise `BrokerRefused`: the service may run as another user.
            raise BrokerUnavailable(
                f"files in the directory {self._directory} cannot be renamed and deleted by this user",
                hint=_LET_WRITE,
            )

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        return DeliveryFacts(
            is_acknowledged=True,
            because="a file is claimed before its event is made, and deleted after the event is durable",
            key="the name under which it was claimed",
            findings=_doubts(self._filename),
        )

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Sighting | FoundFile]
    ) -> AsyncIterator[TriggerEvent]:
        async for seen in shared_stream:
            if isinstance(seen, Sighting):
                if self._filename in seen.names:
                    seen.wanted.add(self._filename)
            elif seen.path.name == self._filename:
                yield TriggerEvent(
                    {
                        "path": str(seen.path),
                        "filename": self._filename,
                        "size_bytes": seen.size_bytes,
                        "modified_at": time_text(seen.modified_ns),
                    }
                )


class DirectoryFileDeleteTrigger(_FileDeleteTrigger):
    """Fires once whenever a file `filename` appears in `directory`, and deletes the file.

    Triggers with the same directory and interval share one scan. If several triggers wait for the same file, all of
    them fire. If the directory is missing or cannot be read, the triggers wait for it.

    Args:
        filename: A name. A pattern with `*` or `?` is refused: use `FilePatternTrigger`.
        poke_interval: Seconds between scans.
    Raises:
        DagError: An argument is not as described.
    """

    def __init__(
        self, directory: str | os.PathLike[str], filename: str, *, poke_interval: float = 5.0
    ) -> None:
        self.directory = path_argument(directory, "directory")
        self.filename = _name(filename)
        super().__init__(Path(self.directory), filename, poke_interval)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "watchers.directory.DirectoryFileDeleteTrigger",
            {
                "directory": self.directory,
                "filename": self.filename,
                "poke_interval": self.poke_interval,
            },
        )

    def shared_stream_key(self) -> Hashable:
        return ("directory", self.directory, self.poke_interval)

    def describe_stream(self) -> str:
        return f"directory {self.directory} (every {self.poke_interval:g} s)"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> FilesProducer:
        trigger = cls(**kwargs)
        return FilesProducer(Path(trigger.directory), poke_interval=trigger.poke_interval)


class FileDeleteTrigger(_FileDeleteTrigger):
    """Fires once whenever a file appears at `filepath`, and deletes the file.

    Args:
        poke_interval: Seconds between scans.
    Raises:
        DagError: An argument is not as described.
    """

    def __init__(self, filepath: str | os.PathLike[str], *, poke_interval: float = 5.0) -> None:
        self.filepath = path_argument(filepath, "filepath")
        path = Path(self.filepath)
        if not path.name:
            raise DagError(f"filepath must name a file, not {filepath!r}")
        super().__init__(path.parent, path.name, poke_interval)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "watchers.directory.FileDeleteTrigger",
            {"filepath": self.filepath, "poke_interval": self.poke_interval},
        )

    def shared_stream_key(self) -> Hashable:
        # A trigger for a single file needs a stream too, because the producer's `advance` deletes the file after the
        # event is durable.
        return ("file", self.filepath, self.poke_interval)

    def describe_stream(self) -> str:
        return f"file {self.filepath} (every {self.poke_interval:g} s)"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> FilesProducer:
        path = Path(cls(**kwargs).filepath)
        interval = cls(**kwargs).poke_interval
        return FilesProducer(path.parent, only=path.name, poke_interval=interval)


def _name(value: Any) -> str:
    if not isinstance(value, str) or value in ("", ".", "..") or "/" in value:
        raise DagError(f"filename must be the name of a file in the directory, not {value!r}")
    refuse_pattern(value, "filename")
    return value


def _doubts(filename: str) -> tuple[Finding, ...]:
    if not re.search(r"\[[^\]]+\]", filename):
        return ()
    text = f"it waits for a file that is literally named {filename!r}"
    hint = "if that is a pattern, write FilePatternTrigger(directory, pattern)"
    return (Finding(text, hint=hint),)
