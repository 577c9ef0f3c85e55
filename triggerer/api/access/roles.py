"""The roles of people and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from triggerer.domain.actors import Actor, Role
from triggerer.errors import RoleNeeded

RoleName = Literal["viewer", "operator", "admin"]
ORDER: Final[tuple[RoleName, ...]] = ("viewer", "operator", "admin")
"""The roles, the weakest first. A role has all rights of the roles before it."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The run whose run token a request carries."""

    dag_id: str
    run_id: str
    token: str = field(repr=False)
    """The run token. A transaction that changes something checks again that the token's attempt still runs."""


@dataclass(frozen=True, slots=True)
class Access:
    """The person or program that sent a request."""

    name: str
    role: RoleName
    via: str
    """The credential that authorized the request: `token:<id>`, `session:<id>`, `run:<dag_id>/<run_id>` or
    `hook:<name>`."""
    sees_payloads: bool
    request_id: str
    run: RunIdentity | None = None

    def may(self, role: RoleName) -> bool:
        """Return whether the sender's role is enough for a route that needs `role`. A run token is never enough."""
        return self.run is None and ORDER.index(self.role) >= ORDER.index(role)

    def actor(self) -> Actor:
        """Return the sender as the actor that the audit shows."""
        return Actor(self.name, Role(self.role), self.via, self.request_id)

    def require_payloads(self) -> None:
        """Check that the role may see payloads.

        Raises:
            RoleNeeded: Payloads are hidden from the role.
        """
        if not self.sees_payloads:
            raise RoleNeeded(
                "payloads are hidden from this role", hint="[api] payloads names the lowest role"
            )

    def require_run(self, dag_id: str, run_id: str) -> None:
        """Check that a run token belongs to this run. A request without a run token passes.

        Raises:
            RoleNeeded: The token belongs to another run.
        """
        if self.run is not None and (self.run.dag_id, self.run.run_id) != (dag_id, run_id):
            raise RoleNeeded("the token of a run reads its own run only")
