"""The error of what was not written, since its lease did not hold any more."""

from __future__ import annotations

from triggerer.domain.events import Fence
from triggerer.errors import LeaseLost


def lease_lost(fence: Fence) -> LeaseLost:
    """The error for what was submitted under a lease that no longer holds."""
    return LeaseLost(
        f"the stream {fence.stream_digest} is no longer owned by {fence.owner} in epoch {fence.epoch}"
    )
