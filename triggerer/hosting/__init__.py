"""Runs the triggers of the DAG files in one instance of the service, on the streams whose leases it owns."""

from triggerer.hosting.host import TriggerHost

__all__ = ["TriggerHost"]
