"""The error of a write whose lease no longer holds."""

from __future__ import annotations

from triggerer.domain.events import Fence
from triggerer.errors import LeaseLost


def lease_lost(fence: Fence) -> LeaseLost:
    """Return the error of a write that was submitted under a lease that no longer holds."""
    return LeaseLost(
        f"the stream {fence.stream_digest} is no longer owned by {fence.owner} in epoch {fence.epoch}"
    )
