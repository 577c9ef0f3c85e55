"""Looks at processes."""

import psutil


def isolated_processes(service: psutil.Process | None = None) -> list[psutil.Process]:
    """Those of `service`, or of this process; also such as have ended and were not waited for."""
    found = []
    for child in (service or psutil.Process()).children():
        try:
            command = child.cmdline()
        except psutil.ZombieProcess:
            command = []
        except psutil.NoSuchProcess:
            continue
        if not command or "triggerer.isolation.child" in command:
            found.append(child)
    return found
