"""The bookmark of a watcher without a shared stream: a JSON value, stored with the events that the trigger yielded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from triggerer.domain.events import Fence, WatcherRef

MAX_BOOKMARK_BYTES: Final = 1024 * 1024
"""The largest bookmark, as JSON. Each change writes the whole bookmark."""
MAX_EVENTS: Final = 1_000
"""The most events that a trigger may yield with one bookmark: they are stored with it in one transaction."""


class BookmarkedEvent(Protocol):
    """The part of a trigger event that the store reads."""

    @property
    def payload(self) -> Any: ...
    @property
    def key(self) -> str | None: ...
    @property
    def partition_key(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class BookmarkChange:
    """Store a watcher's new bookmark, and the events that the trigger yielded before it, under a stream's lease."""

    fence: Fence
    watcher: WatcherRef
    classpath: str
    """The class path of the trigger. A trigger of another class does not get the bookmark."""
    previous: str | None
    """The id of the change before this change. None: the watcher has no bookmark yet."""
    change: str
    """The id of this change, unique."""
    value: bytes
    """The bookmark as JSON."""
    events: Sequence[BookmarkedEvent]
    on_done: Callable[[Exception | None], None]
    """Called once, on the event loop: with None when bookmark and events are durable, or with the error.

    Must not raise.
    """


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The last bookmark of a watcher."""

    change: str | None
    """The id of the last change, even if a trigger of another class stored it. The next change names it as `previous`.
    None: no change has been stored."""
    value: Any
    """The bookmark. None: no trigger of this class path has stored a bookmark for the watcher."""


class BookmarkStore(Protocol):
    """The part of the store that loads and stores bookmarks for the streams."""

    async def load(self, fence: Fence, watcher_id: int, classpath: str) -> Bookmark:
        """Return the last bookmark of a watcher.

        Raises:
            StoreError: The bookmark cannot be read now.
        """

    def submit_nowait(self, change: BookmarkChange) -> None:
        """Add a change to the next transaction. Changes of one watcher are stored in order."""
