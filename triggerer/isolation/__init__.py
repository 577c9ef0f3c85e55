"""Triggers whose code runs in a thread or a process of its own, because it blocks.

`runtime/DESIGN.md`, "Code that blocks", says how the runtime's rules hold all the same.
"""

from triggerer.isolation.proxy import Isolation, IsolationSettings, Placement

__all__ = ["Isolation", "IsolationSettings", "Placement"]
