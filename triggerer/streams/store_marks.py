"""The newest marks of the streams that this instance owns. `triggerer.domain.watchers.stream_marks` explains marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from triggerer.abc import StoreMark
from triggerer.domain.events import Fence
from triggerer.domain.instants import readable
from triggerer.domain.watchers.stream_marks import StoredMark
from triggerer.errors import StoreRestored


class KnownMark(StoreMark):
    """The mark of one stream, under one lease.

    Attributes:
        stored: The newest mark that the database is known to have.
        is_in_order: True if the last `check` found no newer mark at the broker. Only then may the mark be renewed. If
            the database was restored, a renewed mark would be newer than the broker's, and would hide the restore.
    """

    def __init__(self, stored: StoredMark) -> None:
        self.stored = stored
        self.is_in_order = False

    @property
    def text(self) -> str:
        return self.stored.text

    @property
    def last_read_at(self) -> datetime | None:
        return self.stored.at

    def check(self, marks: Iterable[str | None]) -> None:
        found = [StoredMark.parse(text) for text in marks if text is not None]
        newer = [mark for mark in found if mark is not None and not self.stored.knows(mark)]
        self.is_in_order = not newer
        if newer:
            raise _restored(self.stored, newer)


def _restored(stored: StoredMark, newer: Iterable[StoredMark]) -> StoreRestored:
    newest = readable(max(mark.at for mark in newer if mark.at is not None))
    known, time = "nothing", "TIME"
    if stored.at is not None:
        known = f"nothing after {readable(stored.at)}"
        time = readable(stored.at).replace(" ", "T")
    return StoreRestored(
        f"the database knows {known}, but the broker's position is from {newest}:"
        " a backup was restored, and messages would be skipped",
        hint=f"stop the service and run `triggerer db restored --backup-time {time}`;"
        " or, to accept the broker's position, set it again with the broker's own tools",
    )


class StoreMarks:
    """The marks of the streams that this instance owns, by lease."""

    def __init__(self) -> None:
        self._known: dict[Fence, KnownMark] = {}

    def find(self, fence: Fence | None) -> KnownMark | None:
        """Return the mark of a stream, or None if no heartbeat has read a mark, as in tests without a store."""
        return None if fence is None else self._known.get(fence)

    def in_order(self) -> list[Fence]:
        """Return the leases of the streams whose marks the next heartbeat renews."""
        return [fence for fence, mark in self._known.items() if mark.is_in_order]

    def adopt(self, marks: Mapping[Fence, StoredMark]) -> None:
        """From now on, use the marks that a heartbeat has stored and read. Drop the marks of other leases."""
        for fence, stored in marks.items():
            if (known := self._known.get(fence)) is None:
                self._known[fence] = KnownMark(stored)
            else:
                known.stored = stored
        for fence in self._known.keys() - marks.keys():
            del self._known[fence]
