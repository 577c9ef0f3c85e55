"""The event loop's side: shared streams, their subscribers and their advance. See DESIGN.md beside this file."""

from triggerer.runtime.clock import Clock, SystemClock
from triggerer.runtime.context import RuntimeContext
from triggerer.runtime.hosted import HostedState, HostedTrigger, TriggerSpec
from triggerer.runtime.manager import Manager
from triggerer.runtime.settings import RuntimeSettings

__all__ = [
    "Clock",
    "HostedState",
    "HostedTrigger",
    "Manager",
    "RuntimeContext",
    "RuntimeSettings",
    "SystemClock",
    "TriggerSpec",
]
