"""Isolation: runs a trigger in its own thread or process, because blocking code would stop the event loop.

`streams/DESIGN.md`, "Code that blocks", explains how the runtime's guarantees still hold.
"""

from triggerer.isolation.proxy import Isolation, IsolationSettings, Placement

__all__ = ["Isolation", "IsolationSettings", "Placement"]
