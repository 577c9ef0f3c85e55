"""Completes ids and names from the database, for a shell. If anything goes wrong, nothing is completed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

VARIABLE: Final = "_TRIGGERER_COMPLETE"
"""Typer's own name for the variable by which the shell asks for completions instead of running a command."""
_PATIENCE_S: Final = 2.0
"""A user who presses the tabulator key waits no longer."""


def dag_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of DAGs that begin so."""
    from triggerer.store.listing import unknown

    return _beginning(incomplete, context, unknown.dag_ids)


def run_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of runs that begin so, of the DAG that was named before, newest first."""
    from triggerer.store.listing import unknown

    dag_id = context.params.get("dag_id") or ""
    return _beginning(incomplete, context, lambda session: unknown.run_ids(session, dag_id))


def asset_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names and URIs of assets that begin so."""
    from triggerer.store.listing import unknown

    return _beginning(incomplete, context, unknown.asset_names)


def watcher_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the watchers, as ASSET/NAME, that begin so."""
    from triggerer.store.listing import unknown

    return _beginning(incomplete, context, unknown.watcher_names)


def _beginning(
    incomplete: str,
    context: typer.Context,
    ask: Callable[[AsyncSession], Awaitable[list[str]]],
) -> list[str]:
    found = _read(context.params.get("config"), ask)
    return [name for name in found if name.startswith(incomplete)]


def _read(config: Any, ask: Callable[[AsyncSession], Awaitable[list[str]]]) -> list[str]:
    from triggerer.cli.terminal.session import read

    try:
        return read(config, ask, patience_s=_PATIENCE_S)
    except Exception:  # noqa: BLE001  (the boundary to the shell, which would show an error amid the line that is typed)
        return []
