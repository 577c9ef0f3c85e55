"""Claims queued runs and executes them in worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triggerer.executor.executor import Executor

__all__ = ["Executor"]


def __getattr__(name: str) -> Any:
    # Imported late: worker processes import this package too, and have no use for the store.
    if name == "Executor":
        from triggerer.executor.executor import Executor

        return Executor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
