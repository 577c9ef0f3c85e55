"""Reads lists in pages, with opaque cursors and with counts that stop at a bound.

A cursor contains the sort key of a page's last row, and the next page begins after this key. So rows that are added or
deleted between two requests do not shift the next page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.errors import CursorRefused

MOST_COUNTED: Final = 1_000
_DIGEST_BYTES: Final = 9
_View = TypeVar("_View")
Key = Sequence[Any]
"""The values by which a row is sorted. They can be written as JSON."""


@dataclass(frozen=True, slots=True)
class Count:
    """The number of rows of a list."""

    value: int
    is_counted_short: bool
    """True if there are more rows than `value`."""


@dataclass(frozen=True, slots=True)
class Page(Generic[_View]):
    """Some rows of a list, and where the next page begins."""

    items: list[_View]
    next_cursor: str | None
    """The cursor of the next page. None: there were no further rows."""
    count: Count | None = None
    """The number of rows of the whole list. None: the caller did not ask for it."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[_View]):
    """A list that can be read in pages."""

    name: str
    read: Callable[..., Awaitable[list[tuple[Key, _View]]]]
    """Reads rows. It takes the session, `limit`, `after` and filters.

    It returns a list of (key, row): the first `limit` rows after the key `after`."""
    count: Callable[..., Awaitable[Count]]
    """Counts the rows of the list. It takes the session and filters."""

    async def page(
        self,
        session: AsyncSession,
        *,
        limit: int = 100,
        after: str | None = None,
        with_count: bool = False,
        **filters: Any,
    ) -> Page[_View]:
        """Return the page after a cursor, or the first page.

        Args:
            limit: The most rows to return, at least 1. The caller makes sure that the limit is not too large.
            after: `next_cursor` of the previous page.
            filters: The filters of the list. A filter with the value None is left out.
        Raises:
            CursorRefused: The cursor is malformed, or belongs to another list or to other filters.
        """
        assert limit >= 1
        given = {name: value for name, value in filters.items() if value is not None}
        key = None if after is None else decode_cursor(after, self.name, given)
        rows = await self.read(session, limit=limit + 1, after=key, **given)
        more = len(rows) > limit
        rows = rows[:limit]
        return Page(
            [view for _, view in rows],
            encode_cursor(self.name, given, rows[-1][0]) if more else None,
            await self.count(session, **given) if with_count else None,
        )


def encode_cursor(name: str, filters: Mapping[str, Any], key: Any) -> str:
    """Return a cursor for a list with these filters.

    Args:
        name: The name of the list. `decode_cursor` refuses the cursor for another list, or for other filters.
        key: Where the next page begins, in a form that JSON can express.
    """
    written = json.dumps([_digest(name, filters), key], separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(written.encode()).decode().rstrip("=")


def decode_cursor(cursor: str, name: str, filters: Mapping[str, Any]) -> Any:
    """Return the key that `encode_cursor` put into a cursor.

    Raises:
        CursorRefused: The cursor is malformed, or belongs to another list or to other filters.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        written = base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
        digest, key = json.loads(written)
    except (UnicodeError, binascii.Error, ValueError, TypeError, RecursionError) as error:
        raise CursorRefused("the cursor is malformed") from error
    if key is None:
        raise CursorRefused("the cursor is malformed")
    if digest != _digest(name, filters):
        raise CursorRefused("the cursor belongs to another list, or to other filters")
    return key


def _digest(name: str, filters: Mapping[str, Any]) -> str:
    written = json.dumps([name, sorted(filters.items())], default=str).encode()
    return base64.urlsafe_b64encode(hashlib.sha256(written).digest()[:_DIGEST_BYTES]).decode()


async def count_rows(session: AsyncSession, query: Select[Any]) -> Count:
    """Count the rows of a query. Counting stops at `MOST_COUNTED`."""
    some = query.limit(MOST_COUNTED + 1).subquery()
    return counted(await session.scalar(select(func.count()).select_from(some)) or 0)


def counted(rows: int) -> Count:
    """Return the count, given how many rows a query with the limit `MOST_COUNTED + 1` found."""
    return Count(min(rows, MOST_COUNTED), rows > MOST_COUNTED)
