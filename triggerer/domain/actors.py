"""The actor of a change, for the audit: a person or a program."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Role(StrEnum):
    """The rights of an actor. Each role also has the rights of the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    """Is allowed to pause, trigger, emit, cancel, retry, replay and discard."""
    ADMIN = "admin"
    """Is also allowed to create and revoke API tokens, and to delete data."""


CLI: Final = "cli"
"""`Actor.via` of somebody who runs a command of `triggerer`."""
SERVICE: Final = "service"
"""`Actor.via` of a service that changes something at its start."""
LINK: Final = "link"
"""`Actor.via` of a browser that opens a one-time link."""
OIDC: Final = "oidc"
"""`Actor.via` of a person whom the OpenID Connect provider names."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The actor of one change."""

    name: str
    """The user of the operating system, the name of an API token, or the person who signed in.

    For a change without a person, a text such as `retention` or `hook NAME`.
    """
    role: Role
    via: str
    """How the actor reached the service: `cli`, `service`, `link`, `oidc`, `token:<id>`, `session:<id>`,
    `run:<dag_id>/<run_id>` or `hook:<name>`."""
    request_id: str | None = None
    """The id of the HTTP request that caused the change; None: the change did not come from a request."""
