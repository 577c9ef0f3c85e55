"""Joins leases and trigger rows to the runtime."""

from triggerer.hosting.host import TriggerHost

__all__ = ["TriggerHost"]
