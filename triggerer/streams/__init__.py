"""Reads each upstream once for all of its watchers, and advances the position at the broker. See DESIGN.md."""

from triggerer.streams.clock import Clock, SystemClock
from triggerer.streams.context import RuntimeContext
from triggerer.streams.settings import RuntimeSettings
from triggerer.streams.supervision.manager import Manager
from triggerer.streams.supervision.member import Member, MemberState, TriggerSpec

__all__ = [
    "Clock",
    "Manager",
    "Member",
    "MemberState",
    "RuntimeContext",
    "RuntimeSettings",
    "SystemClock",
    "TriggerSpec",
]
