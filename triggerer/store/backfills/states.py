"""The states of a backfill's intervals and partition keys."""

from __future__ import annotations

from typing import Final

PENDING: Final = "pending"
STARTED: Final = "started"
SKIPPED: Final = "skipped"
CANCELLED: Final = "cancelled"
