"""Paths below the user's home directory."""

from __future__ import annotations

from pathlib import Path

from triggerer.errors import ConfigurationError


def expand_user(path: Path) -> Path:
    """Return the path with the home directory in the place of `~`.

    Raises:
        ConfigurationError: There is none: HOME is not set, and the user's id, as containers make one up, has no name.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"{path} cannot be found: this user has no home directory",
            hint="set HOME, or [core] home (~/.triggerer by default) to a path without ~",
        ) from error
