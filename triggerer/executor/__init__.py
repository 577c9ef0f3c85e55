"""Claims queued runs and executes them in worker processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triggerer.executor.executor import Executor
    from triggerer.executor.settings import ExecutorSettings

__all__ = ["Executor", "ExecutorSettings"]

_MODULES = {"Executor": "executor", "ExecutorSettings": "settings"}


def __getattr__(name: str) -> Any:
    # Import these modules only when they are used. The process of `spooling.child` imports this package, too, but needs
    # none of these modules.
    if name in _MODULES:
        return getattr(import_module(f"triggerer.executor.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
