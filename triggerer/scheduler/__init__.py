"""Creates the runs that waiting events ask for."""

from triggerer.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
