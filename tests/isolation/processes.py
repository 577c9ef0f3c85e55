"""Finds the processes of isolated triggers."""

import psutil


def isolated_processes(service: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the isolated triggers' processes that are children of `service` or of this process. Zombies count too."""
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
