"""Launchers start work outside the run's process, find it by its tag after a crash, and stop it."""

from triggerer.worker.launchers.protocol import (
    Absent,
    Ended,
    Handle,
    Intent,
    Launcher,
    Running,
    Sighting,
    Unknown,
)
from triggerer.worker.launchers.registry import launcher_named

__all__ = [
    "Absent",
    "Ended",
    "Handle",
    "Intent",
    "Launcher",
    "Running",
    "Sighting",
    "Unknown",
    "launcher_named",
]
