"""Describes a loaded file as data that can be stored, and checks its watchers. This module runs users' code."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from triggerer.abc import BaseEventTrigger, has_bookmark
from triggerer.dag_processing.mistakes import refuse_unknown_pools, uncalled_functions
from triggerer.domain.assets import Asset, AssetAlias, AssetRef, AssetWatcher
from triggerer.domain.conditions import condition_to_json
from triggerer.domain.dag_files.parsed import (
    ParsedAsset,
    ParsedDag,
    ParsedFile,
    ParsedWatcher,
    Problem,
    WatcherKey,
)
from triggerer.domain.dags import DAG
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import OnPartitions, next_info, timetable_in
from triggerer.domain.tasks import Task
from triggerer.domain.text.json_text import dump_json
from triggerer.domain.text.storable import storable_text
from triggerer.domain.watchers.stream_names import stream_name
from triggerer.errors import DagFileError, PluginError, RowRefused, TemplateError, TriggererError
from triggerer.observability.redaction import hide_known, redact_text
from triggerer.plugins import (
    DagsFolder,
    canonical_kwargs,
    load_trigger_class,
    stream_digest,
    trigger_digest,
)
from triggerer.plugins.dag_file import LoadedFile, file_error, load_dag_file, shown_location
from triggerer.worker.templating import check_templates

_LONGEST_REASON: Final = 10_000
"""The most characters of an error's text. An error may quote a long text of the file."""
_CALLED_BACK: Final = (RunState.SUCCESS, RunState.FAILED)


def parse_file(
    path: str,
    dags_folder: Path,
    allowed_modules: Iterable[str],
    *,
    pools: Collection[str] | None = None,
) -> ParsedFile:
    """Load the file and return its definitions. Never raises for anything that the file does.

    A watcher that cannot be used causes an error, and the rest of the file stays usable.

    Args:
        pools: The names in `[pools]`. A task may use no other pool. None: a task may use any pool.
    """
    started = time.perf_counter()
    folder = DagsFolder(dags_folder)
    try:
        loaded = load_dag_file(dags_folder / path, dags_folder)
        _check_templates(loaded)
        refuse_unknown_pools(loaded, pools)
        parsed = _describe(loaded, folder, tuple(allowed_modules), started)
        _refuse_what_no_store_takes(parsed, path)
    except BaseException as raised:  # noqa: BLE001  (whatever the file's code raises, such as KeyboardInterrupt)
        error = (
            raised
            if isinstance(raised, DagFileError)
            else file_error(raised, str(folder.root / path), path)
        )
        reason = f"{error.reason} ({error.hint})" if error.hint else error.reason
        parsed = ParsedFile(
            path=path,
            parse_seconds=time.perf_counter() - started,
            errors=(Problem(error.file, error.line, reason),),
            imports=folder.imported_files(),
            is_broken=True,
        )
    return replace(parsed, errors=_redacted(parsed.errors), warnings=_redacted(parsed.warnings))


def _redacted(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Hide secrets in the texts. Only this process knows the secrets that the file has read."""
    return tuple(one._replace(reason=_shown(one.reason)) for one in problems)


def _shown(reason: str) -> str:
    # Hide known secrets before cutting the text, because a part of a secret would not be recognised.
    return redact_text(hide_known(storable_text(reason))[:_LONGEST_REASON])


def _describe(
    loaded: LoadedFile, folder: DagsFolder, allowed_modules: tuple[str, ...], started: float
) -> ParsedFile:
    assets: dict[Asset, ParsedAsset] = {}
    watchers: dict[WatcherKey, ParsedWatcher] = {}
    broken: dict[WatcherKey, Problem] = {}
    for asset in loaded.assets:
        described = _asset(asset, folder)
        # A file may define an asset several times. A definition with `extra` takes precedence.
        if asset not in assets or (described.extra and not assets[asset].extra):
            assets[asset] = described
        for watcher in asset.watchers:
            key = WatcherKey(asset.name, asset.uri, watcher.name)
            try:
                found = _watcher(asset, watcher, folder, allowed_modules)
                other = watchers.setdefault(key, found)
                if other.trigger_digest != found.trigger_digest:
                    raise PluginError(f"{other.location} defines it with another trigger")
            except Exception as error:  # noqa: BLE001  (the boundary to users' triggers)
                line = asset.defined_at.line if asset.defined_at else None
                broken[key] = Problem(loaded.path, line, _complaint(asset, watcher, error))
    return ParsedFile(
        path=loaded.path,
        dags=tuple(_dag(dag, folder) for dag in loaded.dags.values()),
        assets=tuple(assets.values()),
        aliases=tuple(alias.name for alias in loaded.aliases),
        watchers=tuple(watcher for key, watcher in watchers.items() if key not in broken),
        broken_watchers=tuple(broken),
        errors=tuple(broken.values()),
        warnings=(*loaded.warnings, *_doubts(loaded)),
        imports=folder.imported_files(),
        parse_seconds=time.perf_counter() - started,
    )


def _doubts(loaded: LoadedFile) -> Iterator[Problem]:
    """Yield warnings about definitions that are allowed but probably not intended."""
    yield from _doubted_names(loaded)
    yield from uncalled_functions(loaded)
    for dag in loaded.dags.values():
        line = dag.defined_at.line if dag.defined_at else None
        for what, doubts in (
            ("partition keys", _doubted_keys),
            ("roll-ups", _doubted_roll_ups),
            ("timetable", _doubted_start),
        ):
            try:
                for sentence in doubts(dag):
                    yield Problem(loaded.path, line, f"DAG {dag.dag_id!r}: {sentence}")
            except Exception as error:  # noqa: BLE001  (the boundary to users' timetables)
                reason = f"its {what} could not be checked: {error!r}"
                yield Problem(loaded.path, line, f"DAG {dag.dag_id!r}: {reason}")


def _doubted_names(loaded: LoadedFile) -> Iterator[Problem]:
    for asset in dict.fromkeys(loaded.assets):
        for watcher in asset.watchers:
            if "/" in watcher.name:
                yield Problem(
                    loaded.path,
                    asset.defined_at.line if asset.defined_at else None,
                    f"watcher {watcher.name!r} of asset {asset.name!r}: commands that take ASSET/NAME split at the last"
                    " slash, and will not find it (give it a name without a slash)",
                )


def _doubted_keys(dag: DAG) -> Iterator[str]:
    timetable = timetable_in(dag.schedule)
    if isinstance(dag.schedule, OnPartitions) or (timetable and timetable.partitioned):
        # Imported here, because the parser of cron expressions takes a tenth of a second.
        from triggerer.domain.partitions.repeated_hours import repeated_keys

        yield from repeated_keys(dag.schedule, now=datetime.now(UTC))


def _doubted_roll_ups(dag: DAG) -> Iterator[str]:
    if isinstance(dag.schedule, OnPartitions):
        from triggerer.domain.partitions.unreachable_roll_ups import impossible_roll_ups

        yield from impossible_roll_ups(dag.schedule, now=datetime.now(UTC))


def _doubted_start(dag: DAG) -> Iterator[str]:
    if timetable_in(dag.schedule) is None:
        return
    from triggerer.domain.timetables import TimeRestriction

    def is_asked_for(*, catchup: bool) -> bool:
        restriction = TimeRestriction(_utc(dag.start_date), _utc(dag.end_date), catchup)
        return next_info(dag.schedule, None, restriction) is not None

    # Call the timetable even if the DAG has a start date, because a timetable that raises must be reported, too.
    is_silent = not is_asked_for(catchup=dag.catchup)
    if is_silent and dag.catchup and dag.start_date is None and is_asked_for(catchup=False):
        yield "with catchup=True its timetable asks for no run unless a start_date says where to begin"


def _check_templates(loaded: LoadedFile) -> None:
    """Check the syntax of the tasks' templates.

    Raises:
        DagFileError: A template is malformed.
    """
    for dag in loaded.dags.values():
        for task in dag.tasks.values():
            for name in task.templated:
                try:
                    check_templates(task.arguments.bound.arguments.get(name), task.argument(name))
                except TemplateError as error:
                    line = task.defined_at.line if task.defined_at else None
                    raise DagFileError(error.message, file=loaded.path, line=line) from error


def _asset(asset: Asset, folder: DagsFolder) -> ParsedAsset:
    return ParsedAsset(
        name=asset.name,
        uri=asset.uri,
        group=asset.group,
        extra=dict(asset.extra),
        location=shown_location(asset, folder),
    )


def _dag(dag: DAG, folder: DagsFolder) -> ParsedDag:
    return ParsedDag(
        dag_id=dag.dag_id,
        location=shown_location(dag, folder),
        description=dag.description,
        tags=list(dag.tags),
        schedule=dag.schedule_to_json(),
        max_active_runs=dag.max_active_runs,
        events_per_run=dag.events_per_run,
        params=dag.params,
        tasks=[_task(task) for task in dag.tasks_in_order()],
        is_paused_upon_creation=dag.is_paused_upon_creation,
        callbacks=",".join(one for one in _CALLED_BACK if dag.callbacks_after(one)) or None,
        start_date=_utc(dag.start_date),
        end_date=_utc(dag.end_date),
        catchup=dag.catchup,
        min_run_gap=_seconds(dag.min_run_gap),
        quiet_period=_seconds(dag.quiet_period),
        depends_on_past=dag.depends_on_past,
        priority=dag.priority,
        pools=tuple(sorted({task.pool for task in dag.tasks.values() if task.pool is not None})),
    )


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def _task(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "upstream": [before.task_id for before in task.upstream],
        "outlets": [condition_to_json(outlet) for outlet in task.outlets],
        "inlets": [_inlet(inlet) for inlet in task.inlets],
        "needs_spark": task.needs_spark,
    }


def _inlet(inlet: Asset | AssetAlias | AssetRef) -> dict[str, Any]:
    return {"name": inlet.name} if isinstance(inlet, AssetRef) else condition_to_json(inlet)


def _watcher(
    asset: Asset, watcher: AssetWatcher, folder: DagsFolder, allowed_modules: tuple[str, ...]
) -> ParsedWatcher:
    """Return the watcher, after checking that another process can rebuild its trigger from `serialize()`.

    Raises:
        PluginError: The trigger cannot be rebuilt.
        Exception: A method of the trigger raised it.
    """
    trigger = watcher.trigger
    classpath, kwargs = _serialized(trigger)
    digest = trigger_digest(classpath, kwargs)
    # A trigger that serialises differently each time would be replaced at each parse.
    if trigger_digest(*_serialized(trigger)) != digest:
        raise PluginError("serialize() returned two different things when called twice")
    kind = load_trigger_class(classpath, dags_folder=folder.root, allowed_modules=allowed_modules)
    kwargs = _as_stored(kwargs)
    again = kind(**kwargs)
    if trigger_digest(*_serialized(again)) != digest:
        raise PluginError(
            f"{classpath} made again from serialize()'s arguments serialises differently"
        )
    key = again.shared_stream_key()
    name = classpath if key is None else stream_name(again.describe_stream(), key)
    digest = trigger_digest(classpath, kwargs, watcher.guarantee)
    identity = None
    if key is None and has_bookmark(kind):
        # Watchers with equal trigger digests would share one trigger and its bookmark. So the trigger's digest includes
        # the watcher's digest. The bookmark must survive a change of the arguments. So the stream's digest depends only
        # on the watcher.
        name = stream_name(again.describe_stream(), classpath)
        identity = stream_digest(("watcher", asset.name, asset.uri, watcher.name))
        digest = trigger_digest(classpath, kwargs, watcher.guarantee, watcher=identity)
    return ParsedWatcher(
        asset_name=asset.name,
        asset_uri=asset.uri,
        name=watcher.name,
        location=shown_location(asset, folder),
        classpath=classpath,
        kwargs=kwargs,
        trigger_digest=digest,
        stream_digest=_stream_of(key, digest, identity),
        stream_key=name,
        guarantee=watcher.guarantee,
    )


def _stream_of(key: Hashable | None, digest: str, identity: str | None) -> str:
    """Return the digest of a watcher's stream.

    Args:
        key: The stream key; None if the trigger has no shared stream.
        digest: The trigger's digest.
        identity: The watcher's digest; None if the trigger has no bookmark.
    """
    if identity is not None:
        return f"watcher-{identity}"
    return f"trigger-{digest}" if key is None else stream_digest(key)


def _as_stored(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a trigger's arguments as the store would return them: after encoding as JSON and decoding.

    Raises:
        PluginError: The store cannot represent the arguments.
    """
    arguments = json.loads(canonical_kwargs(kwargs))
    try:
        dump_json(arguments, "an argument of the trigger")
    except RowRefused as error:
        raise PluginError(error.message, hint=error.hint) from error
    assert isinstance(arguments, dict)
    return arguments


def _serialized(trigger: BaseEventTrigger | Any) -> tuple[str, dict[str, Any]]:
    match trigger.serialize():
        case (str(classpath), dict(kwargs)):
            return classpath, kwargs
        case other:
            raise PluginError(f"serialize() must return a class path and a dict, not {other!r}")


def _complaint(asset: Asset, watcher: AssetWatcher, error: Exception) -> str:
    reason = str(error) if isinstance(error, TriggererError) else f"{type(error).__name__}: {error}"
    return f"watcher {watcher.name!r} of asset {asset.name!r}: {reason}"


def _refuse_what_no_store_takes(parsed: ParsedFile, path: str) -> None:
    try:
        dump_json(parsed.to_json(), "what the file defines")
    except RowRefused as error:
        raise DagFileError(error.message, file=path, hint=error.hint) from error
