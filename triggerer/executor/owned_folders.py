"""Gives each process a folder of its own, in a folder that several processes share because they have the same home.

A process locks a file in its folder until it dies. So other processes can tell which folders dead processes left. Until
the file is locked, the folder's name begins with a dot, and other processes ignore the folder. If the process dies
before that, the folder is never deleted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
"""The name of the locked file."""


def make_owned(folder: Path) -> int:
    """Make this process's folder. The folder is owned until the caller closes the returned descriptor.

    Raises:
        OSError: The folder cannot be made or locked. A later call may succeed.
    """
    unlocked = folder.with_name(f".{folder.name}")
    unlocked.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = _lock(unlocked)
    try:
        unlocked.rename(folder)
    except OSError:
        os.close(lock)
        raise
    return lock


def left_folders(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders below `root` that dead processes left. The caller deletes them.

    Each folder stays locked until the caller asks for the next folder.

    Args:
        own: The folder of this process. It is left out.
    """
    for folder in root.glob("[!.]*"):
        if folder == own:
            continue
        try:
            lock = _lock(folder)
        except OSError:
            # A live process has locked the file, or the file cannot be opened.
            continue
        try:
            # Another process may have deleted the folder between the two steps of `_lock`.
            if folder.exists():
                yield folder
        finally:
            os.close(lock)


def delete(folder: Path) -> None:
    """Delete as much of the folder as possible."""
    shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
