"""Runs triggers with blocking code in threads or processes of their own.

`streams/DESIGN.md`, "Code that blocks", explains how the runtime's rules still hold.
"""

from triggerer.isolation.proxy import Isolation, IsolationSettings, Placement

__all__ = ["Isolation", "IsolationSettings", "Placement"]
