"""`triggerer why` and `triggerer why-not`: why a run exists, and why a DAG has no run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from triggerer.cli.runs.choice import DagId, Last, RunId, check_choice, chosen_run
from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import counted, print_fields, print_json, text
from triggerer.cli.terminal.session import read, settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.text.one_line import one_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.domain.partitions.dividing import Lack
    from triggerer.scheduler.explaining import Why, WhyNot
    from triggerer.scheduler.explaining_partitions import WaitingPartition
    from triggerer.store.listing.views import AssetEventView

_KEYS_SHOWN = 5


def why(
    dag_id: DagId,
    run_id: RunId = None,
    last: Last = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show why a run exists: its asset events, and the broker messages that they came from."""
    check_choice(run_id, last)

    async def ask(session: AsyncSession) -> Why:
        from triggerer.scheduler.explaining import why as explain

        return await explain(session, dag_id, await chosen_run(session, dag_id, run_id))

    found = read(config, ask)
    run = found.run
    if json:
        from triggerer.operations.reading.reasons import view_of_why

        print_json(view_of_why(found))
        return
    print_fields(
        [
            ("run", f"{run.dag_id} {run.run_id}"),
            ("because", _because(found)),
            ("waiting for", run.waiting_for),
            ("waiting since", run.waiting_since if run.waiting_for else None),
            ("partition key", run.partition_key),
            ("logical date", run.logical_date),
            ("data interval", _interval(run.data_interval_start, run.data_interval_end)),
            ("expression", found.expression and readable_state(found.expression)),
            ("read from", "\n".join(map(": ".join, found.streams.items())) or None),
        ]
    )
    print_table(
        (
            "event",
            "asset",
            "timestamp",
            Column("source", Kind.TEXT),
            Column("message", Kind.TEXT),
            Column("partition key", Kind.TEXT),
        ),
        (
            (
                event.id,
                event.asset_name,
                event.timestamp,
                event.source_watcher or event.source_dag_id,
                readable_message(event),
                event.partition_key,
            )
            for event in found.events
        ),
        empty="The run took no events.",
        limit=0,
    )


def readable_message(event: AssetEventView) -> str | None:
    """Return the message's topic, partition and offset if the event has them, else its idempotency key."""
    match event.extra:
        case {"topic": str(topic), "partition": int(partition), "offset": int(offset)}:
            return f"{topic}[{partition}] offset {offset}"
    return event.idempotency_key


def why_not(dag_id: DagId, json: options.Json = False, config: options.Config = None) -> None:
    """Show what a DAG waits for, and what holds its runs back."""

    async def ask(session: AsyncSession) -> WhyNot:
        from triggerer.scheduler.explaining import why_not as explain

        return await explain(session, dag_id, pools=settings_for(config).pools)

    found = read(config, ask)
    if json:
        print_json(found)
        return
    if found.runs_due:
        runs = counted(found.runs_due, "run")
        typer.echo(f"{dag_id}: due now: {runs}; a scheduler makes them, if one runs")
    for hold in found.holds:
        until = "" if hold.until is None else f", until {text(hold.until)}"
        typer.echo(f"{dag_id}: {hold.kind}: {one_line(hold.reason)}{until}")
    for one in found.waiting:
        typer.echo(f"  events of {one.asset_name} wait")
    for watcher in found.watchers:
        said = watcher.reason or one_line(watcher.error)
        why = "" if said is None else f": {said}"
        typer.echo(f"  the watcher {watcher.asset_name}/{watcher.name} is {watcher.state}{why}")
    for key in found.partitions:
        typer.echo(f"  {_readable_key(key)}")
    if found.next_run is not None:
        interval = _interval(found.next_run.data_interval_start, found.next_run.data_interval_end)
        named = found.next_run.partition_key
        about = interval if named is None else f"{named}, {interval}"
        typer.echo(f"  next run in time: {text(found.next_run.run_after)}, for {about}")


def readable_state(state: dict[str, Any], *, nested: bool = False) -> str:
    """Return the DAG's asset expression. Each asset without an event is in brackets."""
    for kind, sign in (("all", " & "), ("any", " | ")):
        if kind in state:
            joined = sign.join(readable_state(part, nested=True) for part in state[kind])
            return f"({joined})" if nested and len(state[kind]) > 1 else joined
    name = state.get("asset") or f"alias {state['alias']}"
    return str(name) if state["satisfied"] else f"[{name}]"


def _readable_key(key: WaitingPartition) -> str:
    lacks = "; ".join(map(_readable_lack, key.lacks))
    if not lacks:
        at = key.due_at
        when = "waits for another event" if at is None else f"can run from {text(at)} on"
    else:
        when = f"waits for {lacks}"
        if key.due_at is not None:
            when += f", and runs with what is there from {text(key.due_at)}"
    again = f" (it has run {counted(key.runs, 'time')})" if key.runs else ""
    return f"{key.partition_key} {when}{again}"


def _readable_lack(lack: Lack) -> str:
    if lack.unreachable is not None:
        return f"{lack.name}, in vain: {lack.unreachable}"
    if not lack.missing:
        return lack.name
    shown = ", ".join(lack.missing[:_KEYS_SHOWN])
    more = len(lack.missing) - _KEYS_SHOWN
    return f"{lack.name} {shown}" + (f" and {more} more" if more > 0 else "")


def _because(found: Why) -> str:
    events = counted(len(found.events), "event")
    match found.run.run_type:
        case "scheduled":
            return "its timetable asked for it"
        case "asset_triggered" if found.run.logical_date is not None:
            return f"its timetable asked for it, and {events} had come"
        case "asset_triggered" if found.run.partition_key is not None:
            return f"{events} made {found.run.partition_key} due"
        case "asset_triggered":
            return f"{events} made its expression true"
        case "backfill":
            return "a backfill asked for it"
        case _:
            return "somebody triggered it"


def _interval(start: Any, end: Any) -> str | None:
    return None if start is None else f"{text(start)} to {text(end)}"
