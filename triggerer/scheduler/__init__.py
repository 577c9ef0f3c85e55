"""Which runs should exist, and making them exist."""

from triggerer.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
