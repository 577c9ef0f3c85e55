"""Runs the triggers that the store declares, on the streams whose leases this instance owns."""

from triggerer.hosting.host import TriggerHost

__all__ = ["TriggerHost"]
