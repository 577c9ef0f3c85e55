"""Runs triggers in threads or processes of their own, because blocking code would stop the service's event loop.

`streams/DESIGN.md`, "Code that blocks", explains how the runtime's guarantees still hold.
"""

from triggerer.isolation.proxy import Isolation, IsolationSettings, Placement

__all__ = ["Isolation", "IsolationSettings", "Placement"]
