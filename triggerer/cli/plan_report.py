"""Prints the report of `triggerer plan`: the DAGs, watchers, assets and runs that differ."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from triggerer.cli.dags.commands import readable_schedule
from triggerer.cli.terminal.output import counted, print_note, text
from triggerer.cli.terminal.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from triggerer.operations.planning.differences import Difference
    from triggerer.operations.planning.feeding import UnfedAsset
    from triggerer.operations.planning.plan import DagPlan, FolderPlan
    from triggerer.operations.planning.watchers import WatcherPlan
    from triggerer.scheduler.replay import Replayed

_LABEL: Final = 9
"""The width of the column with the kind of change, such as `new` or `changed`."""
_UNCHANGED: Final = ("same", "kept")


def print_plan(plan: FolderPlan, dag: str | None, limit: int) -> None:
    """Print the plan, with at most `limit` entries in each of its four lists; 0 prints all."""
    changed = [one for one in plan.dags if one.change not in _UNCHANGED]
    kept = [one for one in plan.dags if one.change == "kept"]
    _head("DAGs", len(changed), f"{len(plan.dags) - len(changed)} as now")
    for one in [*_first(changed, limit), *_first(kept, limit)]:
        _print_dag(one)
    _head("Watchers", len(plan.watchers), "none differs" if not plan.watchers else "")
    for watcher in _first(plan.watchers, limit):
        _print_watcher(watcher)
    if plan.unfed_assets:
        _head("Assets", len(plan.unfed_assets), "that DAGs wait for")
        for asset in _first(plan.unfed_assets, limit):
            _print_asset(asset)
    _print_runs(plan, dag, limit)


def _head(title: str, count: int, more: str) -> None:
    told = f"{count} differ{'s' * (count == 1)}" if title != "Assets" else f"{count}"
    shown = ", ".join(one for one in (told if count else "", more) if one)
    typer.echo(f"{title}: {shown}")


def _first(found: Sequence[Any], limit: int) -> Sequence[Any]:
    if limit and len(found) > limit:
        print_note(f"Stopped after {limit}; --limit 0 shows all.")
    return found[:limit] if limit else found


def _print_dag(one: DagPlan) -> None:
    why = (
        "  its file cannot be read: the present version stays in force"
        if one.change == "kept"
        else ""
    )
    typer.echo(f"  {one.change:<{_LABEL}}{one.dag_id}{why}")
    for difference in one.differences:
        _print_difference(difference)


def _print_watcher(one: WatcherPlan) -> None:
    typer.echo(f"  {one.change:<{_LABEL}}{one.asset_name}/{one.name}")
    if not any(difference.name == "trigger" for difference in one.differences):
        _print_beneath("trigger", one.trigger)
    for difference in one.differences:
        _print_difference(difference)
    if one.is_stream_changed and one.stream_before == one.stream_after:
        _print_beneath("stream", f"{one.stream_after} (a hidden part of it changes)")
    elif one.is_stream_changed:
        _print_change("stream", one.stream_before or "", one.stream_after or "")
    else:
        _print_beneath("stream", one.stream_after or one.stream_before or "")
    _print_beneath("effect", one.effect)


def _print_asset(one: UnfedAsset) -> None:
    name = f"alias {one.name}" if one.uri is None else one.name
    typer.echo(f"  {'loses' if one.lost_watchers else 'unfed':<{_LABEL}}{name}")
    if one.lost_watchers:
        only = "its only watcher" if len(one.lost_watchers) == 1 else "all its watchers"
        _print_beneath("goes", f"{only}: {', '.join(one.lost_watchers)}")
    if one.fed_by:
        _print_beneath("fed by", f"the outlets of {', '.join(one.fed_by)}")
    else:
        since = "" if one.is_new else ", as now"
        _print_beneath("fed by", f"nothing: no watcher, and no task has it as an outlet{since}")
    _print_beneath("waits", ", ".join(one.waiting_dags))


def _print_difference(one: Difference) -> None:
    before, after = _shown(one.name, one.before), _shown(one.name, one.after)
    if one.kind == "added":
        _print_beneath(one.name, f"new: {after}" if after else "new")
    elif one.kind == "removed":
        _print_beneath(one.name, f"gone (was {before})" if before else "gone")
    elif one.is_hidden:
        _print_beneath(one.name, f"{after} (a hidden part of it changes)")
    elif before == after:
        # The values differ, but their short forms are equal. For instance, the short form of some schedules lacks the
        # time zone. So print the whole values.
        _print_change(one.name, text(one.before), text(one.after))
    else:
        _print_change(one.name, before, after)


def _shown(name: str, value: Any) -> str:
    if name == "schedule":
        return readable_schedule(value)
    if name.startswith("tasks.") and isinstance(value, dict):
        return ", ".join(f"{key} {text(part)}" for key, part in value.items())
    if isinstance(value, tuple):
        value = list(value)
    return text(value)


def _print_change(name: str, before: str, after: str) -> None:
    """Print the old and the new value on one line, or on two lines if one line is too short."""
    line = f"{before} → {after}"
    if len(_indent()) + len(name) + 2 + len(line) <= _room():
        _print_beneath(name, line)
    else:
        _print_beneath(name, before)
        _print_beneath("", f"→ {after}")


def _print_beneath(name: str, value: str) -> None:
    label = f"{_indent()}{name}: " if name else f"{_indent()}  "
    lines = textwrap.wrap(
        value,
        width=_room(),
        initial_indent=label,
        subsequent_indent=f"{_indent()}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines or [label.rstrip()]:
        typer.echo(line)


def _indent() -> str:
    return " " * (_LABEL + 2)


def _room() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _print_runs(plan: FolderPlan, dag: str | None, limit: int) -> None:
    told = f"{counted(plan.events, 'event')} from {text(plan.since)} to {text(plan.until)}"
    typer.echo(f"Runs: with {told}")
    differing = [one for one in plan.dags if dag is not None or _differs(one)]
    print_table(
        (
            "dag_id",
            "before",
            "after",
            Column("in both", Kind.MINOR),
            "queued",
            "due now",
            "due then",
            Column("next run", Kind.MINOR),
            Column("no longer waited for", Kind.MINOR),
            Column("then waits for", Kind.TEXT),
        ),
        (
            (
                one.dag_id,
                _count(one.before),
                _count(one.after),
                one.runs_in_both,
                f"{one.queued}{'+' if one.is_counted_short else ''}",
                one.due_before,
                one.due_after,
                one.next_after,
                one.dropped or None,
                one.error or "; ".join(one.holds_after) or None,
            )
            for one in differing
        ),
        empty="No DAG has other runs.",
        limit=limit,
    )
    print_note("The replay assumes that runs take no time, and that no DAG is paused.")


def _differs(one: DagPlan) -> bool:
    """Whether to list the DAG: its runs change, queued events are dropped, or it has an error."""
    return (
        one.error is not None
        or one.before != one.after
        or (one.due_before, one.next_before) != (one.due_after, one.next_after)
        or one.dropped > 0
    )


def _count(replayed: Replayed | None) -> str | None:
    if replayed is None:
        return None
    return f"{len(replayed.runs)}{'+' if replayed.is_cut_short else ''}"
