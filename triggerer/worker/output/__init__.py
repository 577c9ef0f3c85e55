"""The argument `output` of a task: it writes data once, however often the run is attempted."""

from triggerer.worker.output.outputs import Output

__all__ = ["Output"]
