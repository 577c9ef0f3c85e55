"""Writes a task's data once, however often its run is attempted: the argument `output`."""

from triggerer.worker.output.outputs import Output

__all__ = ["Output"]
