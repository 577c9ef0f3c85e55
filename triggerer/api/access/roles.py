"""The roles of people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from triggerer.domain.actors import Actor, Role
from triggerer.errors import RoleNeeded

RoleName = Literal["viewer", "operator", "admin"]
ORDER: Final[tuple[RoleName, ...]] = ("viewer", "operator", "admin")
"""Each role may do what the roles before it may."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The attempt of a run whose token a request has."""

    dag_id: str
    run_id: str
    token: str = field(repr=False)
    """By it, a change looks again whether the attempt still runs."""


@dataclass(frozen=True, slots=True)
class Access:
    """The person or program behind a request."""

    name: str
    role: RoleName
    via: str
    """`token:<id>`, `session:<id>` or `run:<dag_id>/<run_id>`."""
    sees_payloads: bool
    request_id: str
    run: RunIdentity | None = None

    def may(self, role: RoleName) -> bool:
        """Return whether the role is enough for a route that needs `role`."""
        return self.run is None and ORDER.index(self.role) >= ORDER.index(role)

    def actor(self) -> Actor:
        """Return the sender as the audit names it."""
        return Actor(self.name, Role(self.role), self.via, self.request_id)

    def require_payloads(self) -> None:
        """Refuse if the role may not see payloads.

        Raises:
            RoleNeeded: It may not.
        """
        if not self.sees_payloads:
            raise RoleNeeded(
                "payloads are hidden from this role", hint="[api] payloads names the lowest role"
            )

    def require_run(self, dag_id: str, run_id: str) -> None:
        """Refuse the token of another run; other tokens pass.

        Raises:
            RoleNeeded: The token belongs to another run.
        """
        if self.run is not None and (self.run.dag_id, self.run.run_id) != (dag_id, run_id):
            raise RoleNeeded("the token of a run reads its own run only")
