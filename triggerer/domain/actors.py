"""The person or program that changes something, for the audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """The rights of an actor. Each role includes the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    """May pause, trigger, emit, cancel, retry, replay and discard."""
    ADMIN = "admin"
    """May also handle tokens and delete data."""


CLI: Final = "cli"
"""The `via` of a command."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of one change."""

    name: str
    """The user of the operating system, the name of a token, or the person who signed in."""
    role: Role
    via: str
    """`cli`, `token:<id>` or `session:<id>`."""
    request_id: str | None = None
    """The id of the HTTP request."""
