"""The event loop's side: shared streams, their subscribers and their advance. See DESIGN.md beside this file."""

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
