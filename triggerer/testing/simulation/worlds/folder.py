"""Simulates users' own DAG files: their filters and expressions, with given messages or with invented ones."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Final, Union, get_args, get_origin, get_type_hints
from zlib import crc32

from triggerer.abc import BaseEventTrigger, BrokerMessage
from triggerer.domain.conditions import aliases_of, assets_of, condition_from_json
from triggerer.domain.dag_files.merging import Folder
from triggerer.domain.dag_files.parsed import ParsedWatcher
from triggerer.errors import DagError
from triggerer.plugins import load_trigger_class
from triggerer.testing.simulation.brokers.broker import Broker
from triggerer.testing.simulation.brokers.stream import Stream, WatcherTemplate
from triggerer.testing.simulation.database.model import Dag
from triggerer.testing.simulation.kernel.scenario import AMPLE
from triggerer.testing.simulation.worlds.world import World

_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MADE_UP = (
    b"{}",
    b'{"id": 1}',
    b'{"id": 2, "type": "created", "value": 10}',
    b'{"id": 3, "type": "deleted", "nested": {"value": null}}',
    b"[1, 2]",
    b'"text"',
    b"not JSON",
)


@dataclass(frozen=True, slots=True)
class FolderWorkload:
    """Replaces the DAGs and watchers of a world with the DAGs and watchers of a folder.

    Call it with a world that has not started.
    """

    dags: tuple[Dag, ...]
    watchers: tuple[ParsedWatcher, ...]
    dags_folder: Path
    allowed_modules: tuple[str, ...] = ()
    samples: tuple[bytes, ...] = _MADE_UP

    def __call__(self, world: World) -> None:
        names = sorted(
            {
                asset.name
                for dag in self.dags
                if dag.condition is not None
                for asset in assets_of(dag.condition)
            }
            | {watcher.asset_name for watcher in self.watchers}
        )
        asset_ids = {name: number for number, name in enumerate(names, 1)}
        world.replace_dags(self.dags, asset_ids)
        by_stream: dict[str, list[ParsedWatcher]] = {}
        for watcher in self.watchers:
            by_stream.setdefault(watcher.stream_digest, []).append(watcher)
        world.forget_streams()
        # The simulation of a folder does not test the hosts' capacity, so let all triggers fit.
        world.capacity = AMPLE
        for watchers in by_stream.values():
            # In the trace, a stream has the name of its first watcher. No other stream has this name.
            key = f"{watchers[0].asset_name}/{watchers[0].name}"
            templates = tuple(
                WatcherTemplate(
                    self.load(watcher),
                    watcher.kwargs,
                    asset_ids[watcher.asset_name],
                    _shown(watcher),
                )
                for watcher in watchers
            )
            broker = Broker(key, world.scenario, world.faults, world.checker)
            stream = Stream(key, broker, templates, partial(_message, self.samples, key))
            world.add_stream(stream)
            for template in templates:
                world.new_watcher(stream, template)

    def load(self, watcher: ParsedWatcher) -> type[BaseEventTrigger]:
        """Return the class of the watcher's trigger.

        Raises:
            PluginError: The class is not in the folder or in an allowed module.
        """
        return load_trigger_class(
            watcher.classpath,
            dags_folder=self.dags_folder,
            allowed_modules=self.allowed_modules,
        )


def _message(
    samples: tuple[bytes, ...], topic: str, number: int, lane: int, offset: int
) -> BrokerMessage:
    value = samples[crc32(str(number).encode()) % len(samples)]
    # The position has the fields of all brokers, because the folder's filters may expect any broker.
    position = {
        **dict.fromkeys(("topic", "queue", "subscription", "entity"), topic),
        **dict.fromkeys(("partition", "group_id", "ordering_key", "session_id"), lane),
        **dict.fromkeys(("offset", "sequence_number"), offset),
        "message_id": f"{topic}/{lane}/{offset}",
    }
    return BrokerMessage(
        value, position=position, published_at=_BEGIN + timedelta(milliseconds=number)
    )


def _shown(watcher: ParsedWatcher) -> str:
    return f"{watcher.asset_name}/{watcher.name}"


def _why_not(cls: type[BaseEventTrigger], trigger: BaseEventTrigger) -> str | None:
    """Return why a trigger cannot be simulated; None if it can."""
    if trigger.shared_stream_key() is None:
        return "its trigger has no shared stream"
    kinds = _kinds_read(cls)
    if kinds and not any(_is_message(kind) for kind in kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        return f"{cls.__name__} reads {names}, but the simulation has only messages of brokers"
    return None


def _is_message(kind: type) -> bool:
    return issubclass(BrokerMessage, kind) or issubclass(kind, BrokerMessage)


def _kinds_read(cls: type[BaseEventTrigger]) -> tuple[type, ...]:
    """Return the classes of raw events that the filter's annotation names.

    The result is empty if the filter has no annotation, or if the annotation allows any class.
    """
    filtering = cls.filter_shared_stream
    try:
        hints = get_type_hints(filtering)
    except NameError:
        # The file imports a name in the annotation only for type checkers. So the annotation cannot be evaluated.
        return ()
    parameter = next(iter([*inspect.signature(filtering).parameters][1:]), None)
    (element, *_) = get_args(hints.get(parameter or "")) or (None,)
    kinds = get_args(element) if get_origin(element) in (Union, UnionType) else (element,)
    return kinds if all(isinstance(kind, type) for kind in kinds) else ()


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a folder that can be simulated. `left_out` names the other DAGs and watchers, with reasons."""

    workload: FolderWorkload
    left_out: tuple[str, ...]


def select(
    folder: Folder,
    dags_folder: Path,
    *,
    allowed_modules: tuple[str, ...] = (),
    samples: tuple[bytes, ...] = (),
) -> Selection:
    """Choose the watchers that read messages of a shared stream, and the DAGs that wait for assets.

    Raises:
        DagError: There is no watcher to simulate.
    """
    left_out: list[str] = []
    dags: list[Dag] = []
    for parsed, _ in folder.dags.values():
        try:
            condition = condition_from_json(parsed.schedule)
        except DagError:
            left_out.append(f"DAG {parsed.dag_id}: its schedule is not an expression of assets")
            continue
        if aliases_of(condition):
            left_out.append(
                f"DAG {parsed.dag_id}: only tasks resolve aliases, and tasks do not run"
            )
        else:
            dags.append(
                Dag(parsed.dag_id, condition, parsed.max_active_runs, parsed.events_per_run)
            )
    chosen: list[ParsedWatcher] = []
    workload = FolderWorkload((), (), dags_folder, allowed_modules)
    for watcher, _ in folder.watchers.values():
        cls = workload.load(watcher)
        reason = _why_not(cls, cls(**watcher.kwargs))
        if reason is None:
            chosen.append(watcher)
        else:
            left_out.append(f"watcher {_shown(watcher)}: {reason}")
    if not chosen:
        raise DagError(
            f"no watcher in {dags_folder} reads messages of a shared stream",
            hint="; ".join(left_out) or None,
        )
    workload = FolderWorkload(
        tuple(dags), tuple(chosen), dags_folder, allowed_modules, samples or _MADE_UP
    )
    return Selection(workload, tuple(left_out))
