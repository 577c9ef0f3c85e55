"""Runs the triggers of the DAG files in this instance, on the streams whose leases the instance owns."""

from triggerer.hosting.host import TriggerHost

__all__ = ["TriggerHost"]
