"""Compares the present DAGs and watchers with another folder's, value by value. Secrets are hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from triggerer.domain.dag_files.parsed import ParsedDag, ParsedWatcher
from triggerer.observability.redaction import redact

_FIELDS: Final = (
    "schedule",
    "start_date",
    "end_date",
    "catchup",
    "events_per_run",
    "min_run_gap",
    "quiet_period",
    "max_active_runs",
    "depends_on_past",
    "priority",
    "pools",
    "callbacks",
    "description",
    "tags",
)


class Kind(StrEnum):
    """Whether a value was added, removed or changed."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs, without secrets.

    `before` is None if the value was added, and `after` is None if the value was removed.
    """

    name: str
    """A field (`max_active_runs`), or a path (`params.region`, `tasks.load.upstream`, `match`)."""
    kind: Kind
    before: Any
    after: Any
    is_hidden: bool = False
    """True if both values look alike because their secrets are hidden."""


def differences_of_dags(before: ParsedDag, after: ParsedDag) -> tuple[Difference, ...]:
    """Return the differences between two definitions of a DAG.

    Tasks are compared only by the values that the store has, such as their order, upstream tasks, outlets and inlets. A
    change of a task's code is not found.
    """
    fields = {name: (getattr(before, name), getattr(after, name)) for name in _FIELDS}
    return (
        *_changed(fields),
        *_of_mappings("params", before.params, after.params),
        *_of_tasks(before, after),
    )


def schedule_of_new(dag: ParsedDag) -> tuple[Difference, ...]:
    """Return the schedule of a new DAG as an added value."""
    return (_difference("schedule", "schedule", Kind.ADDED, None, dag.schedule),)


def differences_of_watchers(before: ParsedWatcher, after: ParsedWatcher) -> tuple[Difference, ...]:
    """Return the differences in the trigger's class and arguments, and in the guarantee."""
    fields = {
        "trigger": (before.classpath, after.classpath),
        "guarantee": (before.guarantee, after.guarantee),
    }
    return (*_changed(fields), *_of_mappings("", before.kwargs, after.kwargs))


def _changed(fields: Mapping[str, tuple[Any, Any]]) -> Iterator[Difference]:
    for name, (before, after) in fields.items():
        if before != after:
            yield _difference(name, name, Kind.CHANGED, before, after)


def _of_mappings(
    prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Difference]:
    for name in sorted({*before, *after}):
        path = f"{prefix}.{name}" if prefix else name
        if name not in before:
            yield _difference(path, name, Kind.ADDED, None, after[name])
        elif name not in after:
            yield _difference(path, name, Kind.REMOVED, before[name], None)
        elif before[name] != after[name]:
            yield _difference(path, name, Kind.CHANGED, before[name], after[name])


def _of_tasks(before: ParsedDag, after: ParsedDag) -> Iterator[Difference]:
    old = {task["task_id"]: task for task in before.tasks}
    new = {task["task_id"]: task for task in after.tasks}
    for task_id in [*new, *(one for one in old if one not in new)]:
        path = f"tasks.{task_id}"
        if task_id not in old:
            yield _difference(path, "task", Kind.ADDED, None, _nonempty_fields(new[task_id]))
        elif task_id not in new:
            yield _difference(path, "task", Kind.REMOVED, _nonempty_fields(old[task_id]), None)
        else:
            yield from _of_mappings(path, old[task_id], new[task_id])
    if [one for one in old if one in new] != [one for one in new if one in old]:
        yield _difference("tasks", "tasks", Kind.CHANGED, list(old), list(new))


def _nonempty_fields(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task without its name and empty values."""
    return {name: value for name, value in task.items() if value and name != "task_id"}


def _difference(path: str, key: str, kind: Kind, before: Any, after: Any) -> Difference:
    shown = redact(key, before), redact(key, after)
    return Difference(path, kind, *shown, is_hidden=kind is Kind.CHANGED and shown[0] == shown[1])
