"""`triggerer watchers parked`: lists, shows, replays and discards parked messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import (
    check_state,
    counted,
    print_answer,
    print_fields,
    print_json,
    readable_lane,
    wrong_use,
)
from triggerer.cli.terminal.session import read, read_list, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list
from triggerer.domain.text.one_line import one_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.parked import ReplayResult
    from triggerer.store.listing.views import ParkedMessageView, ParkedView

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Ids = Annotated[
    list[int] | None,
    typer.Argument(
        metavar="ID...",
        callback=options.refuse_unstorable,
        help="Ids of parked messages, as `parked list` shows them.",
    ),
]
OfWatcher = Annotated[
    str | None,
    typer.Option(
        "--watcher",
        metavar="ASSET/NAME",
        help="Only messages of this watcher.",
        autocompletion=completing.watcher_names,
    ),
]
OfAll = Annotated[bool, typer.Option("--all", help="All messages of all watchers.")]


@app.command("list")
def list_(
    asset: options.Asset = None,
    dag: options.Dag = None,
    watcher: OfWatcher = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List parked messages, oldest first; with --dag, only messages for assets that the DAG waits for.

    States: set_aside (parked until you replay or discard the message), kept (stored for its watcher, which will receive
    it).
    """
    from triggerer.domain.watchers.parked import ParkedState

    check_state(state, ParkedState)
    if asset is not None and watcher is not None:
        wrong_use("--asset and --watcher do not go together: --watcher names its asset")
    of_asset, name = (asset, None) if watcher is None else split_watcher(watcher)

    async def ask(session: AsyncSession) -> list[ParkedView]:
        from triggerer.store.watchers.parked_listing import list_parked

        return await list_parked(
            session, limit=limit, asset=of_asset, dag=dag, watcher=name, state=state
        )

    found = read_list(config, ask, dag=dag, asset=of_asset, watcher=name)
    print_list(
        found,
        (
            "id",
            "asset",
            "watcher",
            "state",
            "failures",
            Column("lane", Kind.MINOR),
            Column("parked", Kind.MINOR),
            Column("key", Kind.MINOR),
            Column("error", Kind.TEXT),
        ),
        lambda row: (
            row.id,
            row.asset_name,
            row.watcher,
            row.state,
            row.failures,
            readable_lane(row.lane),
            row.parked_at,
            row.idempotency_key,
            one_line(row.error),
        ),
        json=json,
        empty="No messages are parked or stored.",
        limit=limit,
    )


@app.command()
def show(
    number: Annotated[int, typer.Argument(metavar="ID", callback=options.refuse_unstorable)],
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one parked message: its content, and the error of its watcher."""

    async def ask(session: AsyncSession) -> ParkedMessageView:
        from triggerer.operations.parked import show_parked

        return await show_parked(session, number)

    row = read(config, ask)
    if json:
        print_json(row)
        return
    print_fields(
        [
            ("id", row.id),
            ("asset", row.asset_name),
            ("watcher", row.watcher),
            ("state", row.state),
            ("lane", readable_lane(row.lane)),
            ("key", row.idempotency_key),
            ("failures", row.failures),
            ("parked", row.parked_at),
            ("size", f"{row.size_bytes} bytes"),
            ("error", row.error),
            ("traceback", row.traceback),
            ("message", row.message),
        ]
    )


@app.command()
def replay(
    ids: Ids = None,
    watcher: OfWatcher = None,
    all_: OfAll = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Deliver parked messages to their watchers again. A message that fails again is parked again."""
    chosen = _chosen(ids, watcher, all_)

    async def change(session: AsyncSession) -> ReplayResult:
        from triggerer.operations.parked import replay_messages

        return await replay_messages(session, this_user(), **chosen)

    done = write(config, change)
    lines = [f"replayed: {counted(done.count, 'message')}"]
    lines += [
        f"stay parked, because no file declares the watcher: {one}" for one in done.undeclared
    ]
    answer: dict[str, Any] = {"replayed": done.count}
    if done.undeclared:
        answer["undeclared"] = list(done.undeclared)
    print_answer(answer, "\n".join(lines), json=json)


@app.command()
def discard(
    ids: Ids = None,
    watcher: OfWatcher = None,
    all_: OfAll = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete messages for good: parked messages, and messages that are stored for a watcher that catches up."""
    chosen = _chosen(ids, watcher, all_)

    async def change(session: AsyncSession) -> int:
        from triggerer.operations.parked import discard_messages

        return await discard_messages(session, this_user(), **chosen)

    number = write(config, change)
    print_answer({"discarded": number}, f"discarded: {counted(number, 'message')}", json=json)


def split_watcher(text: str) -> tuple[str, str]:
    """Split `ASSET/NAME` at the last slash, because the asset may be a URI.

    Raises:
        typer.BadParameter: There is no slash.
    """
    asset, slash, name = text.rpartition("/")
    if not (asset and slash and name):
        raise typer.BadParameter(f"{text!r} is not ASSET/NAME")
    return asset, name


class _Chosen(TypedDict):
    """The messages that the user chose by ids or by watcher. If the user chose neither: all messages."""

    ids: list[int]
    asset: str | None
    watcher: str | None


def _chosen(ids: list[int] | None, watcher: str | None, is_all: bool) -> _Chosen:
    if sum((bool(ids), watcher is not None, is_all)) != 1:
        raise typer.BadParameter("give the ids of messages, or --watcher, or --all")
    asset, name = (None, None) if watcher is None else split_watcher(watcher)
    return {"ids": ids or [], "asset": asset, "watcher": name}
