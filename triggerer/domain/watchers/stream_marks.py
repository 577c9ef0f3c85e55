"""The marks of a stream, by which its owner finds out that the database was restored from a backup.

Each heartbeat of a stream's owner renews the mark in the database. The producer stores the newest mark at the broker,
together with each position. If the broker's mark is newer, the database has lost its last transactions.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, Self

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class StoredMark(NamedTuple):
    """A mark of a stream. Marks of one incarnation can be compared."""

    incarnation: str
    """A random text. It is new for a new stream, and after `triggerer db restored`."""
    at: datetime | None
    """When the mark was made, by the database's clock. None: before the first heartbeat."""

    @property
    def text(self) -> str:
        """The mark in the form that is stored at a broker."""
        return f"{self.incarnation}/{0 if self.at is None else (self.at - _EPOCH) // _MICROSECOND}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the mark; None: no release of triggerer wrote this text."""
        incarnation, _, number = text.rpartition("/")
        try:
            at = _EPOCH + int(number) * _MICROSECOND
        except (ValueError, OverflowError):
            return None
        return cls(incarnation, at)

    def knows(self, other: StoredMark) -> bool:
        """Whether the broker's mark `other` is not newer than this mark of the database; true if not comparable.

        False: the database has lost transactions.
        """
        return self.incarnation != other.incarnation or (other.at or _EPOCH) <= (self.at or _EPOCH)
