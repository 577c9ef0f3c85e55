"""Creates the runs that queued events and timetables ask for."""

from triggerer.scheduler.loop import Scheduler

__all__ = ["Scheduler"]
