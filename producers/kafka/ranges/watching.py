"""Looks up the ends of partitions at an interval, and yields the new ranges."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import anyio

from producers.kafka.ranges.bookmark import RangeBookmark
from producers.kafka.ranges.planning import OffsetRange, PartitionView, plan

logger = logging.getLogger(__name__)


class LooksUpEnds(Protocol):
    """Looks up the ends of partitions. Implemented by `LogEnds`, and by a double in tests."""

    async def look_up(self, bookmark: RangeBookmark) -> list[PartitionView]:
        """Return the partitions as they are now."""


async def new_ranges(
    ends: LooksUpEnds, stored: Any, *, interval_s: float, max_offsets: int | None
) -> AsyncIterator[tuple[Sequence[OffsetRange], Any]]:
    """Yield new ranges, for ever, with the JSON bookmark to store together with their events.

    Args:
        stored: The bookmark as it was stored last. None: no bookmark is stored.
    """
    bookmark = RangeBookmark.parse(stored)
    warned: set[str] = set()
    while True:
        views = await ends.look_up(bookmark)
        is_complete = False
        while not is_complete:
            found = plan(bookmark, views, max_offsets=max_offsets)
            is_complete = found.is_complete
            for warning in found.warnings:
                if warning not in warned:
                    logger.warning("%s", warning)
            warned = set(found.warnings)
            if found.bookmark == bookmark:
                continue
            bookmark = found.bookmark
            yield found.ranges, bookmark.to_json()
            # The new bookmark includes the cuts that the views report, so drop them from the views.
            views = [_without_cut(view) for view in views]
        await anyio.sleep(interval_s)


def _without_cut(view: PartitionView) -> PartitionView:
    return replace(view, cut_at=None)
