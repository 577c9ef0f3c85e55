"""Asset events from files of a directory whose names match a pattern."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Hashable
from pathlib import Path
from typing import Any

from anyio import to_thread

from triggerer.abc import (
    BaseEventTrigger,
    DeliveryFacts,
    Finding,
    SharedStreamProducer,
    TriggerEvent,
)
from triggerer.errors import BrokerUnavailable, DagError
from triggerer.pluginkit.arguments import choice_argument
from triggerer.pluginkit.texts import text_of
from watchers.files.appeared import AppearedFile, PatternSighting, scan, time_text
from watchers.files.arguments import interval_argument, path_argument
from watchers.files.name_patterns import NamePattern, pattern_argument
from watchers.files.producers import MovingProducer, RememberingProducer

_PROCESSED = "processed"


class FilePatternTrigger(BaseEventTrigger):
    """Fires once for each file of `directory` whose name matches `pattern`.

    A file fires as soon as two scans in a row have found it with equal inode, size and time of modification. The
    event's `extra` has `path`, `name`, `size` in bytes and `modified_at`. If the trigger moves the file, `path` is the
    path after the move. Triggers with the same `directory`, `poke_interval`, `claim` and `move_to` share one scan.

    Args:
        directory: The directory to scan. Its subfolders are not scanned. If it is missing, the trigger waits for it.
        pattern: A pattern of names, case-sensitive: `*` matches any characters, `?` one character, `[a-c]` one of a
            range, `[!a-c]` one outside the range. A name that begins with a dot matches only a pattern that begins with
            a dot.
        claim: "move": a file is moved to `move_to` before it fires. "remember": the file stays, and the store remembers
            it until the file is deleted or changes.
        move_to: A folder on the same file system, relative to `directory`; by default `processed`.
        poke_interval: Seconds between scans.
    Raises:
        DagError: An argument is not as described.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        pattern: str,
        *,
        claim: str = "move",
        move_to: str | os.PathLike[str] | None = None,
        poke_interval: float = 5.0,
    ) -> None:
        self.directory = path_argument(directory, "directory")
        self.pattern = pattern_argument(pattern)
        self.claim = choice_argument(claim, "claim", "move", "remember")
        self.move_to = None if move_to is None else path_argument(move_to, "move_to")
        self._target = _target(self.directory, self.move_to, self.claim)
        self.poke_interval = interval_argument(poke_interval)
        self._names = NamePattern(self.pattern)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "watchers.directory.FilePatternTrigger",
            {
                "directory": self.directory,
                "pattern": self.pattern,
                "claim": self.claim,
                "move_to": self.move_to,
                "poke_interval": self.poke_interval,
            },
        )

    def shared_stream_key(self) -> Hashable:
        return ("files", self.directory, self.poke_interval, self.claim, self._target)

    def describe_stream(self) -> str:
        how = "remembered" if self._target is None else f"moved to {self._target}"
        return f"files in {self.directory} ({how}, every {self.poke_interval:g} s)"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        trigger = cls(**kwargs)
        directory, interval = Path(trigger.directory), trigger.poke_interval
        if trigger._target is None:
            return RememberingProducer(directory, poke_interval=interval)
        return MovingProducer(directory, move_to=Path(trigger._target), poke_interval=interval)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[PatternSighting | AppearedFile]
    ) -> AsyncIterator[TriggerEvent]:
        async for seen in shared_stream:
            if isinstance(seen, PatternSighting):
                seen.patterns.add(self.pattern)
            elif self._fires_for(seen):
                yield TriggerEvent(
                    {
                        "path": text_of(os.fsencode(seen.path)),
                        "name": text_of(os.fsencode(seen.name)),
                        "size": seen.size_bytes,
                        "modified_at": time_text(seen.modified_ns),
                    }
                )

    def _fires_for(self, seen: AppearedFile) -> bool:
        if seen.patterns is not None:
            return self.pattern in seen.patterns
        return self._names.matches(seen.name)

    async def check_source(self) -> None:
        await to_thread.run_sync(self._check, abandon_on_cancel=True)

    def _check(self) -> None:
        try:
            scan(Path(self.directory))
        except OSError as error:
            # Do not raise `BrokerRefused`: the directory may exist on the service's machine, or may be created later.
            # The service waits for it.
            raise BrokerUnavailable(
                f"the directory {self.directory} cannot be read: {error.strerror}",
                hint="the watcher waits for it, and is shown as running",
            ) from error
        if self._target is None:
            return
        if not os.access(self.directory, os.R_OK | os.W_OK | os.X_OK):
            raise BrokerUnavailable(
                f"files in the directory {self.directory} cannot be moved by this user",
                hint="give the user of the service the right to write in the directory",
            )
        target = Path(self._target)
        there = next(path for path in (target, *target.parents) if path.exists())
        if there.stat().st_dev != Path(self.directory).stat().st_dev:
            raise BrokerUnavailable(
                f"{target} is on another file system than {self.directory}",
                hint='name a folder on the same file system as move_to, or write claim="remember"',
            )

    async def describe_delivery(self, *, ask: bool) -> DeliveryFacts:
        if self._target is not None:
            return DeliveryFacts(
                is_acknowledged=True,
                because="a marker is written before a file is moved, and deleted after its event is durable",
                key="the id under which the file was moved",
            )
        passing = Finding(
            "a file that is gone or overwritten before it has fired is not seen",
            hint='write claim="move", or leave files for longer than two poke_intervals',
        )
        return DeliveryFacts(
            is_acknowledged=True,
            because="the files that have fired are stored after their events are durable",
            key="the file's path, inode, size and time of modification",
            findings=(passing,),
        )


def _target(directory: str, move_to: str | None, claim: str) -> str | None:
    """Return the folder that files are moved to; None: they are not moved."""
    if claim == "remember":
        if move_to is not None:
            raise DagError('move_to is allowed only with claim="move"')
        return None
    target = os.path.normpath(Path(directory) / (move_to or _PROCESSED))
    if target == directory:
        raise DagError(
            f"move_to must be another folder than directory: {directory!r} would fire for ever",
            hint=f"by default it is {_PROCESSED} in the directory",
        )
    return target
