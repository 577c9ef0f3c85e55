"""`triggerer dags backfill`: runs a DAG for the past intervals of its timetable."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from triggerer.cli.dags.key_backfill import keys_in_range, show_plan, start_keys
from triggerer.cli.terminal import completing, options
from triggerer.cli.terminal.output import check_state, counted, print_json, text, wrong_use
from triggerer.cli.terminal.session import read, read_list, this_user, write
from triggerer.cli.terminal.tables import Column, Kind, print_list
from triggerer.nearest import ending

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.backfills import PlannedInterval
    from triggerer.store.listing.views import BackfillView

_REPROCESS = ("none", "failed", "all")
_STATES = ("running", "done", "cancelled")


def backfill(
    dag_id: Annotated[
        str | None, typer.Argument(metavar="DAG_ID", autocompletion=completing.dag_ids)
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="First logical date, ISO 8601, for example 2026-03-01."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Last logical date, inclusive.")
    ] = None,
    partition_key: Annotated[
        list[str] | None,
        typer.Option(
            "--partition-key",
            metavar="KEY",
            help="Run for this partition key instead of a range. Can be given several times.",
        ),
    ] = None,
    reprocess: Annotated[
        str,
        typer.Option(
            "--reprocess",
            metavar="WHICH",
            help="Which existing runs of the intervals or keys are repeated: none, failed or all.",
        ),
    ] = "none",
    max_active: Annotated[
        int,
        typer.Option(
            "--max-active",
            min=1,
            callback=options.refuse_unstorable,
            help="At most this number of the backfill's runs at a time.",
        ),
    ] = 10,
    params: Annotated[
        str | None,
        typer.Option(
            "--params",
            "--conf",
            metavar="JSON",
            help='JSON object that overrides params of the runs, for example {"full": true}.',
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the backfill would do, and start nothing.")
    ] = False,
    list_: Annotated[
        bool,
        typer.Option("--list", help="List backfills. Takes --dag, --asset and --state as filters."),
    ] = False,
    cancel: Annotated[
        int | None,
        typer.Option(
            "--cancel",
            metavar="ID",
            callback=options.refuse_unstorable,
            help="Cancel this backfill.",
        ),
    ] = None,
    dag: options.Dag = None,
    asset: options.Asset = None,
    state: options.State = None,
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Run a DAG for the intervals of its timetable between two times, or for partition keys; list or cancel backfills.

    A DAG that is scheduled by partition keys runs for the keys of the periods, such as days, that start between the two
    times.

    By default, an interval or a key that already has a run is skipped (see --reprocess).

    With --list, --asset selects the backfills of DAGs that wait for the asset. --state is running, done or cancelled.
    """
    if reprocess not in _REPROCESS:
        meant = ending(reprocess, _REPROCESS)
        wrong_use(f"--reprocess is one of {', '.join(_REPROCESS)}, not {reprocess!r}{meant}")
    values = options.parse_object(params, "--params")
    if values is not None and (list_ or cancel is not None):
        wrong_use("--params does not go with --list and --cancel")
    if list_:
        check_state(state, _STATES)
        if None not in (dag_id, dag) and dag_id != dag:
            wrong_use(f"DAG_ID and --dag differ: {dag_id!r} and {dag!r}; give one of them")
        _list(config, dag_id or dag, asset, state, limit, json=json)
        return
    if (dag, asset, state) != (None, None, None):
        wrong_use("--dag, --asset and --state go with --list")
    if cancel is not None:
        _show([_cancel(config, cancel)], json=json)
        return
    start, end = options.parse_instant(from_, "--from"), options.parse_instant(to, "--to")
    keys = partition_key
    if dag_id is None or (not keys and (start is None or end is None)):
        wrong_use(
            "give DAG_ID with --from and --to, or DAG_ID with --partition-key, or --list, or --cancel ID"
        )
    if keys and (start is not None or end is not None):
        wrong_use("--partition-key does not go with --from and --to")
    if start is not None and end is not None:
        keys = keys_in_range(config, dag_id, start, end)
    if keys is not None:
        if dry_run and keys:
            show_plan(config, dag_id, keys, reprocess, limit, json=json)
            return
        found = start_keys(
            config, dag_id, keys, reprocess=reprocess, max_active=max_active, params=values
        )
        _show([found], json=json)
        return
    assert start is not None
    assert end is not None
    if dry_run:
        _plan(config, dag_id, start, end, reprocess, limit, json=json)
        return

    found = _start(
        config, dag_id, start, end, reprocess=reprocess, max_active=max_active, params=values
    )
    _show([found], json=json)


def _start(
    config: Path | None,
    dag_id: str,
    start: datetime,
    end: datetime,
    *,
    reprocess: str,
    max_active: int,
    params: dict[str, Any] | None,
) -> BackfillView:
    async def change(session: AsyncSession) -> BackfillView:
        from triggerer.domain.backfills import Reprocess
        from triggerer.operations.backfills import start_backfill

        return await start_backfill(
            session,
            this_user(),
            dag_id,
            start,
            end,
            reprocess=Reprocess(reprocess),
            max_active=max_active,
            params=params,
        )

    return write(config, change)


def _cancel(config: Path | None, backfill_id: int) -> BackfillView:
    async def change(session: AsyncSession) -> BackfillView:
        from triggerer.operations.backfills import cancel_backfill

        return await cancel_backfill(session, this_user(), backfill_id)

    return write(config, change)


def _show(found: list[BackfillView], *, json: bool) -> None:
    if json:
        print_json(found[0])
        return
    for one in found:
        typer.echo(f"{one.dag_id}: backfill {one.id} is {one.state}, {_progress(one)}")


def _progress(one: BackfillView) -> str:
    noun = "partition key" if one.partition_keys else "interval"
    counts = one.partition_keys or one.intervals
    return f"{counted(sum(counts.values()), noun)} ({_listed(counts)})"


def _list(
    config: Path | None,
    dag_id: str | None,
    asset: str | None,
    state: str | None,
    limit: int,
    *,
    json: bool,
) -> None:
    async def ask(session: AsyncSession) -> list[BackfillView]:
        from triggerer.operations.backfills import list_backfills

        return await list_backfills(session, limit=limit, dag=dag_id, asset=asset, state=state)

    found = read_list(config, ask, dag=dag_id, asset=asset)
    have_params = any(row.params for row in found)
    print_list(
        found,
        (
            "id",
            "dag_id",
            "state",
            "from",
            "to",
            "reprocess",
            Column("max active", Kind.MINOR),
            Column("intervals or keys", Kind.TEXT),
            Column("runs", Kind.TEXT),
            *([Column("params", Kind.TEXT)] if have_params else []),
        ),
        lambda row: (
            row.id,
            row.dag_id,
            row.state,
            row.from_date,
            row.to_date,
            row.reprocess,
            row.max_active,
            _listed(row.partition_keys or row.intervals),
            _listed(row.runs),
            *([row.params] if have_params else []),
        ),
        json=json,
        empty="No backfills.",
        limit=limit,
    )


def _plan(
    config: Path | None,
    dag_id: str,
    start: datetime,
    end: datetime,
    reprocess: str,
    limit: int,
    *,
    json: bool,
) -> None:
    async def ask(session: AsyncSession) -> list[PlannedInterval]:
        from triggerer.domain.backfills import Reprocess
        from triggerer.operations.backfills import plan_backfill

        return await plan_backfill(session, dag_id, start, end, reprocess=Reprocess(reprocess))

    planned = read(config, ask)
    shown = planned[:limit] if limit else planned
    has_keys = any(row.partition_key is not None for row in shown)
    print_list(
        shown,
        (
            "logical date",
            "run after",
            *([Column("partition key", Kind.TEXT)] if has_keys else []),
            "what",
            Column("run", Kind.TEXT),
        ),
        lambda row: (
            row.logical_date,
            row.run_after,
            *([row.partition_key] if has_keys else []),
            row.step,
            None if row.run_id is None else f"{row.run_id} ({row.run_state})",
        ),
        json=json,
        empty="No interval.",
        limit=limit,
    )


def _listed(counts: dict[str, int]) -> str | None:
    return ", ".join(f"{text(n)} {state}" for state, n in sorted(counts.items())) or None
