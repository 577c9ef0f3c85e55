"""`triggerer tokens`: makes, lists and revokes API tokens."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_answer, print_json, print_note, wrong_use
from triggerer.cli.terminal.session import read, settings_for, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.actors import Role

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.access.tokens import NewToken
    from triggerer.store.listing.views import TokenView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

RoleOption = Annotated[
    str, typer.Option("--role", metavar="ROLE", help="viewer, operator or admin.")
]


@app.command()
def create(
    role: RoleOption,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Who or what will use the token.")
    ] = "",
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="When the token expires, in ISO 8601. Default: never."
        ),
    ] = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Make an API token and print it. The token itself is not stored, so it cannot be printed again."""
    expires_at = None if expires is None else options.parse_instant(expires, "--expires")
    made = _create(config, _role(role), name, expires_at)
    if json:
        print_json(made)
        return
    print_note(f"the token {made.id} for the role {made.role}; it is not shown again:")
    typer.echo(made.token)


def _create(config: options.Config, role: Role, name: str, expires_at: datetime | None) -> NewToken:
    async def change(session: AsyncSession) -> NewToken:
        from triggerer.operations.access.tokens import create_token

        return await create_token(
            session,
            this_user(),
            role=role,
            name=name or f"made by {this_user().name}",
            expires_at=expires_at,
        )

    return write(config, change)


@app.command("list")
def list_(
    limit: options.Limit = 100, json: options.Json = False, config: options.Config = None
) -> None:
    """List the tokens, including revoked tokens, newest first."""

    async def ask(session: AsyncSession) -> list[TokenView]:
        from triggerer.store.access.tokens import list_tokens

        return await list_tokens(session, limit=limit)

    found = read(config, ask)
    if json:
        print_json(found)
        return
    print_table(
        ("id", Column("name", Kind.TEXT), "role", "created", "last used", "expires", "revoked"),
        (
            (
                one.id,
                one.name,
                one.role,
                one.created_at,
                one.last_used_at,
                one.expires_at,
                one.revoked_at,
            )
            for one in found
        ),
        empty="There are no tokens. The first start of the API makes one.",
        limit=limit,
    )


@app.command()
def revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a token: `trg_<id>_...`.")
    ],
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Revoke a token at once, and end the sessions that it opened."""

    async def change(session: AsyncSession) -> TokenView:
        from triggerer.operations.access.tokens import revoke_token

        return await revoke_token(session, this_user(), token_id)

    found = write(config, change)
    print_answer(found, f"the token {found.id} ({found.name}) is revoked", json=json)


@app.command()
def login(
    role: RoleOption = "admin", json: options.Json = False, config: options.Config = None
) -> None:
    """Print a link that signs a browser in, once, within 15 minutes."""
    wanted = _role(role)

    async def change(session: AsyncSession) -> str:
        from triggerer.operations.access.tokens import create_login_code

        return await create_login_code(session, this_user(), role=wanted)

    code = write(config, change)
    file = settings_for(config).core.home / "api-address"
    address = file.read_text("utf-8").strip() if file.is_file() else None
    if address is None and not json:
        print_note("no API runs with this home; put its address in front of this path:")
    link = f"{address or ''}/login?code={code}"
    print_answer({"link": link}, link, json=json)


def _role(written: str) -> Role:
    if written not in list(Role):
        wrong_use(f"--role is one of {', '.join(Role)}, not {written!r}")
    return Role(written)
