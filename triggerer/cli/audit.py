"""`triggerer audit`: lists changes with their actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.session import read
from triggerer.cli.terminal.tables import Column, Kind, print_list

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import AuditView


def audit(
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="Show only changes by this actor.")
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            "--action",
            metavar="ACTION",
            help="Show only this action, such as run.cancel, or a kind of actions, such as run.",
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            "--subject",
            metavar="TEXT",
            help="Show only changes of this subject, such as a DAG with its runs.",
        ),
    ] = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List the changes that people and programs requested, newest first.

    Secrets are hidden.
    """

    async def ask(session: AsyncSession) -> list[AuditView]:
        from triggerer.store.audit.listing import list_audit

        return await list_audit(session, limit=limit, actor=actor, action=action, subject=subject)

    print_list(
        read(config, ask),
        (
            "at",
            "actor",
            Column("role", Kind.MINOR),
            Column("via", Kind.MINOR),
            "action",
            Column("subject", Kind.TEXT),
            Column("after", Kind.TEXT),
            Column("request", Kind.MINOR),
        ),
        lambda row: (
            row.at,
            row.actor,
            row.role,
            row.via,
            row.action,
            row.subject,
            row.after,
            row.request_id,
        ),
        json=json,
        empty="No changes.",
        limit=limit,
    )
