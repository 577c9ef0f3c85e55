"""Paths below the user's home directory."""

from __future__ import annotations

from pathlib import Path

from triggerer.errors import ConfigurationError


def expand_user(path: Path) -> Path:
    """Return the path with `~` replaced by the user's home directory.

    Raises:
        ConfigurationError: There is no home directory: HOME is not set, and the user id has no entry in the system's
            user list, as in some containers.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"{path} cannot be found: this user has no home directory",
            hint="set HOME, or [core] home (~/.triggerer by default) to a path without ~",
        ) from error
