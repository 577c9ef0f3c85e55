"""Splits ack ids into requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

MOST_IDS: Final = 2_500
MOST_BYTES: Final = 460_000
"""The most bytes of ids with their framing. Pub/Sub accepts 512 KiB for the whole request, which
also has the subscription's name.
"""
_FRAMING: Final = 4
"""The bytes that a request needs for each id, in addition to the id's own bytes."""


def split(ack_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the ids in order, in parts that each fit into a request; a part has at least one id."""
    if len(ack_ids) <= MOST_IDS and sum(map(len, ack_ids)) + _FRAMING * len(ack_ids) <= MOST_BYTES:
        if ack_ids:
            yield ack_ids
        return
    start = size = 0
    for index, ack_id in enumerate(ack_ids):
        size += len(ack_id) + _FRAMING
        if index > start and (index - start >= MOST_IDS or size > MOST_BYTES):
            yield ack_ids[start:index]
            start, size = index, len(ack_id) + _FRAMING
    if start < len(ack_ids):
        yield ack_ids[start:]
