"""Locks a SQLite database, so that a second service cannot start on it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from triggerer.errors import ConfigurationError
from triggerer.store.database.sqlite.file import beside
from triggerer.store.database.transactions import Database


@contextmanager
def lock_exclusively(
    database: Database, *, purpose: str = "triggerer standalone"
) -> Iterator[None]:
    """Lock this SQLite database against other services. Do nothing for PostgreSQL.

    Commands do not take this lock, because they run beside the service. The lock ends with the block, or when the
    process dies. The lock file stays, and does no harm.

    Args:
        purpose: The name of this process, for the error that a second process gets.
    Raises:
        ConfigurationError: Another process has the lock, or this user may not lock the file.
    """
    if database.path is None:
        yield
        return
    path = beside(database.path, ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{database.name} cannot be locked: {path}: {error.strerror}",
            hint="let this user write the file, and make files beside it; while no service runs, it may be deleted",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
            raise ConfigurationError(
                f"{database.name} is in use by another service, {holder}",
                hint="with SQLite everything runs in one `triggerer standalone`: "
                "stop that one first, or use PostgreSQL",
            ) from error
        # On a full disk this write fails. A second process is still refused, but its error does not name this process.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} ({purpose})\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
