"""Pages of lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Generic, TypeVar

from litestar.params import Parameter

T = TypeVar("T")

MOST: Final = 1_000


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list."""

    items: list[T]
    next_cursor: str | None
    """The cursor of the next page. None: this is the last one."""


Limit = Annotated[
    int,
    Parameter(ge=1, le=MOST, description="The most items to return."),
]
Cursor = Annotated[
    str | None,
    Parameter(
        max_length=2_000,
        description="The `next_cursor` of the page before. It belongs to the same filters.",
    ),
]
