"""For plugin authors: the runtime without a database."""

from triggerer.testing.clock import VirtualClock
from triggerer.testing.harness import GroupView, HostedView, StreamHarness

__all__ = ["GroupView", "HostedView", "StreamHarness", "VirtualClock"]
