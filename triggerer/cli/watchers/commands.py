"""`triggerer watchers`: lists and shows watchers, and replays their logs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import (
    check_state,
    print_fields,
    print_json,
    print_note,
    readable_lane,
    text,
)
from triggerer.cli.terminal.session import read, read_list, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.cli.watchers import parked
from triggerer.cli.watchers.consumer_lag import fields_of, measure, print_notes, shown_lag, with_lag
from triggerer.cli.watchers.parked import split_watcher
from triggerer.domain.text.one_line import one_line
from triggerer.errors import UnknownWatcher

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.store.listing.views import PositionView, WatcherView
    from triggerer.store.watchers.replays import ReplayView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    parked.app,
    name="parked",
    help="Parked messages, which a watcher could not process: list, show, replay, discard.",
)
Lag = Annotated[
    bool,
    typer.Option(
        "--lag", help="Ask each stream's source for its consumer lag. Takes up to 5 seconds."
    ),
]
_STATES = ("waiting", "running", "failing", "catching_up")


@app.command("list")
def list_(
    asset: options.Asset = None,
    dag: options.Dag = None,
    state: options.State = None,
    limit: options.Limit = 100,
    lag: Lag = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List watchers.

    States: waiting (no instance hosts the watcher yet), running, failing (see its error), catching_up (it receives the
    messages that it missed).
    """
    check_state(state, _STATES)

    async def ask(session: AsyncSession) -> list[WatcherView]:
        from triggerer.store.watchers.listing import list_watchers

        return await list_watchers(session, limit=limit, asset=asset, dag=dag, state=state)

    found = read_list(config, ask, dag=dag, asset=asset)
    lags = measure(config, found) if lag else None
    is_unsure = any(row.reason for row in found)
    if json:
        print_json(found if lags is None else [with_lag(row, lags) for row in found])
        return
    print_table(
        (
            "asset",
            "watcher",
            "state",
            "behind",
            *(() if lags is None else ("lag",)),
            Column("set aside", Kind.MINOR),
            Column("behind since", Kind.MINOR),
            Column("trigger", Kind.MINOR),
            Column("stream", Kind.TEXT),
            Column("owner", Kind.MINOR),
            *([Column("note", Kind.TEXT)] if is_unsure else []),
            Column("error", Kind.TEXT),
        ),
        (
            (
                row.asset_name,
                row.name,
                _state(row),
                row.behind if row.positions else None,
                *(() if lags is None else (shown_lag(lags[row.stream_id]),)),
                row.set_aside or None,
                row.behind_since,
                row.trigger.rpartition(".")[2],
                row.stream,
                row.owner,
                *([row.reason] if is_unsure else []),
                one_line(row.error),
            )
            for row in found
        ),
        empty="No watchers.",
        limit=limit,
    )
    if lags is not None:
        print_notes(found, lags)


@app.command()
def show(
    asset: Annotated[
        str,
        typer.Argument(
            metavar="ASSET",
            help="Name or URI of the asset, followed by WATCHER; or ASSET/WATCHER in one word.",
            autocompletion=completing.watcher_names,
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="WATCHER", help="Name of the watcher.")
    ] = None,
    lag: Lag = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one watcher with its trigger's arguments, its backlog and its error."""
    if name is None:
        asset, name = split_watcher(asset)

    async def ask(session: AsyncSession) -> list[WatcherView]:
        from triggerer.store.watchers.listing import list_watchers

        found = await list_watchers(session, asset=asset, name=name)
        if not found:
            raise UnknownWatcher(asset, name)
        return found

    found = read(config, ask)
    row = found[0]
    lags = measure(config, found) if lag else None
    if json:
        print_json(row if lags is None else with_lag(row, lags))
        return
    print_fields(
        [
            ("asset", row.asset_name),
            ("watcher", row.name),
            ("state", _state(row)),
            ("note", row.reason),
            ("since", row.updated_at),
            ("trigger", row.trigger),
            ("arguments", row.kwargs),
            ("guarantee", row.guarantee),
            ("stream", row.stream),
            ("owner", row.owner),
            ("file", row.path),
            ("error", row.error),
            *(() if lags is None else fields_of(lags[row.stream_id])),
            ("behind", row.behind if row.positions else None),
            ("behind since", row.behind_since),
            ("set aside", row.set_aside or None),
            *((f"behind in {readable_lane(one.lane)}", _backlog(one)) for one in row.positions),
            ("traceback", row.traceback),
        ]
    )


@app.command()
def replay(
    watcher: Annotated[
        str,
        typer.Argument(
            metavar="ASSET/NAME",
            help="The watcher. The text after the last slash is its name.",
            autocompletion=completing.watcher_names,
        ),
    ],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|TIME",
            help="Where to start: earliest, or a time in ISO 8601, for example 2026-11-24T12:00:00Z. A time means the"
            " first message published then or later. Without an offset it is UTC.",
        ),
    ],
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Create asset events again for messages that already have events."
        ),
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Make one watcher read its log again from an earlier position. Other watchers are not affected.

    Without --again, messages that already have asset events create no second events.

    A running service starts the replay at once. If no service runs, the replay starts with the service. If the replay
    cannot start, the watcher's error says why.
    """
    asset, name = split_watcher(watcher)
    instant = (
        None if start == "earliest" else options.parse_instant(start, "--from", also="earliest or ")
    )

    async def change(session: AsyncSession) -> ReplayView:
        from triggerer.operations.replaying import replay_watcher

        return await replay_watcher(session, this_user(), asset, name, start=instant, again=again)

    asked = write(config, change)
    if json:
        print_json(asked)
        return
    start_shown = "the earliest message" if asked.start is None else text(asked.start)
    shown = f"{asked.asset_name}/{asked.watcher}"
    typer.echo(f"{shown}: asked to read again from {start_shown} on")
    print_note(
        f"if the replay cannot start, `triggerer watchers show {shlex.quote(shown)}` says why"
    )


def _state(row: WatcherView) -> str:
    """Return the state, with a remark if the watcher's owner may be dead."""
    return f"{row.state} (owner silent)" if row.reason and row.state != "waiting" else row.state


def _backlog(one: PositionView) -> str:
    left = "an unknown number of" if one.behind is None else one.behind
    if one.position is None:
        return f"{left} messages stored, since {text(one.since)}"
    return f"at {one.position[1]}, {left} messages left, since {text(one.since)}"
