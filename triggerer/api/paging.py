"""The parameters of lists, and the pages of a list."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from litestar.params import QueryParameter

from triggerer.api.context import ApiContext
from triggerer.store.listing.paging import Listing, Page
from triggerer.store.listing.unknown import refuse_unknown

__all__ = ["MOST", "Counted", "Cursor", "Limit", "Page", "page_of", "whole"]

T = TypeVar("T")

MOST: Final = 1_000

Limit = Annotated[int, QueryParameter(ge=1, le=MOST, description="The most items to return.")]
Cursor = Annotated[
    str | None,
    QueryParameter(
        max_length=4_000,
        description="The `next_cursor` of the page before. It belongs to the same filters.",
    ),
]
Counted = Annotated[
    bool,
    QueryParameter(name="count", description="Also count the items of all pages, up to 1,000."),
]


async def page_of(
    api: ApiContext,
    listing: Listing[T],
    *,
    limit: int,
    cursor: str | None,
    counted: bool,
    known: dict[str, str | None] | None = None,
    **filters: Any,
) -> Page[T]:
    """Return a page of a list.

    Args:
        known: The filters whose values name objects, such as `{"dag": "a"}`. If the first page is empty and such an
            object does not exist, an error is raised.
    Raises:
        CursorRefused: The cursor is damaged, or belongs to other filters.
        UnknownName: A filter names an unknown object.
    """
    async with api.use.reading() as session:
        found = await listing.page(
            session, limit=limit, after=cursor, with_count=counted, **filters
        )
        if not found.items and cursor is None and known is not None:
            await refuse_unknown(session, **known)
    return found


def whole(items: list[T]) -> Page[T]:
    """Return a page with the whole list."""
    return Page(items, None)
