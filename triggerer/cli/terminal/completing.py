"""Completes ids and names from the database for a shell. After any error the completion is empty."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

VARIABLE: Final = "_TRIGGERER_COMPLETE"
"""A shell sets this variable to ask for completions instead of running a command. Typer chose the name."""
_PATIENCE_S: Final = 2.0
"""The longest time that a user waits after pressing the Tab key."""


def dag_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the DAG ids that begin with the typed text."""
    from triggerer.store.listing import unknown

    return _beginning(incomplete, context, unknown.dag_ids)


def run_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the run ids that begin with the typed text, newest first. Only runs of the typed DAG_ID count."""
    from triggerer.store.listing import unknown

    dag_id = context.params.get("dag_id") or ""
    return _beginning(incomplete, context, lambda session: unknown.run_ids(session, dag_id))


def asset_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the asset names and URIs that begin with the typed text."""
    from triggerer.store.listing import unknown

    return _beginning(incomplete, context, unknown.asset_names)


def watcher_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the watchers, as ASSET/NAME, that begin with the typed text."""
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
    except Exception:  # noqa: BLE001  (the shell would print an error into the line that the user types)
        return []
