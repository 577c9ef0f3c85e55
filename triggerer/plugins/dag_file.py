"""Runs one DAG file and collects its definitions. Only child processes may do so, because the file is users' code."""

from __future__ import annotations

import linecache
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from triggerer.domain.assets import Asset, AssetAlias, AssetRef
from triggerer.domain.conditions import AssetAll, AssetAny, written_leaves_of
from triggerer.domain.dag_files.parsed import Problem
from triggerer.domain.dags import DAG, collect_dags
from triggerer.domain.schedules import condition_of
from triggerer.domain.tasks import MadeFunction, collect_task_functions
from triggerer.errors import AssetConflict, DagError, DagFileError, TriggererError
from triggerer.plugins import DagsFolder, install_hint
from triggerer.plugins.unknown_names import (
    explain_missing_airflow,
    explain_unknown_argument,
    explain_unknown_import,
)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """The definitions of a DAG file, as live objects."""

    path: str
    """The file's path, relative to the DAGs folder, with forward slashes."""
    module: ModuleType
    modules: tuple[ModuleType, ...]
    """The file's module and the folder's modules that it imports. Spark's Python workers cannot import them, so a
    function that is sent to Spark takes the code of these modules along."""
    dags: dict[str, DAG]
    assets: tuple[Asset, ...]
    """Every asset at module level or in a DAG. Equal assets may appear several times."""
    aliases: tuple[AssetAlias, ...]
    task_functions: tuple[MadeFunction, ...]
    """Every function that `@task` decorated while the file ran, with the DAG in whose `with` block it was decorated."""
    warnings: tuple[Problem, ...]


def load_dag_file(path: Path | str, dags_folder: Path | str) -> LoadedFile:
    """Run the file and return its definitions. The modules that it imports from the folder are run again, too.

    A DAG belongs to the file whose module-level code creates the DAG, even through a factory in another file. The
    result leaves out DAGs that the file imports.

    Args:
        path: A path below `dags_folder`, absolute or relative to the working directory.
    Raises:
        DagFileError: The file cannot be read or run, or its definitions contradict one another. The error names the
            file, the line and the reason.
    """
    folder = DagsFolder(dags_folder)
    try:
        relative = folder.relative(path)
    except ValueError as error:
        raise DagFileError(f"it is not below {folder.root}", file=str(path)) from error
    file = str(folder.root / relative)
    if not Path(file).is_file():
        is_there = Path(file).exists()
        raise DagFileError(
            "it is no regular file" if is_there else "there is no such file", file=relative
        )
    folder.forget()
    linecache.checkcache()
    with (
        warnings.catch_warnings(record=True) as caught,
        collect_dags() as collected,
        collect_task_functions() as functions,
    ):
        warnings.simplefilter("default")
        warnings.filterwarnings("always", category=UserWarning)
        try:
            module = folder.import_file(file)
        except (Exception, SystemExit) as error:
            raise file_error(error, file, relative) from error
    if module.__file__ != file:
        raise DagFileError(
            f"its module name {module.__name__!r} belongs to {module.__file__}",
            file=relative,
            hint="rename the file",
        )
    dags = _own_dags(file, relative, [*collected, *_values(module, DAG)])
    assets = tuple(_assets(module, dags.values()))
    refuse_conflicts(assets, relative, folder)
    return LoadedFile(
        path=relative,
        module=module,
        modules=folder.modules(),
        dags=dags,
        assets=assets,
        aliases=tuple(dict.fromkeys(_aliases(module, dags.values()))),
        task_functions=tuple(functions),
        warnings=tuple(_problem(warning, folder) for warning in caught),
    )


def refuse_conflicts(assets: Iterable[Asset], relative: str, folder: DagsFolder) -> None:
    """Refuse assets that give one URI two names, or one name two URIs.

    Raises:
        DagFileError: The message names both definitions.
    """
    names: dict[str, Asset] = {}
    uris: dict[str, Asset] = {}
    for asset in assets:
        for known in (names.setdefault(asset.name, asset), uris.setdefault(asset.uri, asset)):
            if known != asset:
                conflict = AssetConflict(
                    f"asset {asset.name!r} ({asset.uri}) at {shown_location(asset, folder)} contradicts "
                    f"asset {known.name!r} ({known.uri}) at {shown_location(known, folder)}"
                )
                line = asset.defined_at.line if asset.defined_at else None
                raise DagFileError(
                    conflict.message,
                    file=relative,
                    line=line,
                    hint="a URI has one name, and a name one URI",
                ) from conflict


def shown_location(thing: Asset | DAG, folder: DagsFolder) -> str:
    """Return `file:line`. A file in the DAGs folder is shown relative to the folder."""
    location = thing.defined_at
    if location is None:
        return "an unknown location"
    try:
        return f"{folder.relative(location.file)}:{location.line}"
    except ValueError:
        return str(location)


def _own_dags(file: str, relative: str, found: Iterable[DAG]) -> dict[str, DAG]:
    dags: dict[str, DAG] = {}
    for dag in found:
        if dag.defined_at is None or dag.defined_at.file != file:
            continue
        other = dags.setdefault(dag.dag_id, dag)
        if other is not dag:
            first = other.defined_at.line if other.defined_at else "?"
            raise DagFileError(
                f"DAG {dag.dag_id!r} is defined twice, first in line {first}",
                file=relative,
                line=dag.defined_at.line,
            )
    return dags


def _values(module: ModuleType, kind: type[Any]) -> Iterator[Any]:
    """Yield the instances of a class at module level, also in lists, tuples and mappings there."""
    for name, value in list(vars(module).items()):
        if name == "__builtins__":
            continue
        match value:
            case list() | tuple():
                yield from (item for item in value if isinstance(item, kind))
            case dict():
                yield from (item for item in value.values() if isinstance(item, kind))
            case _ if isinstance(value, kind):
                yield value


def _leaves(module: ModuleType, dags: Iterable[DAG]) -> Iterator[Asset | AssetAlias]:
    for expression in _values(module, object):
        if isinstance(expression, Asset | AssetAlias | AssetAll | AssetAny):
            yield from written_leaves_of(expression)
    for dag in dags:
        if (condition := condition_of(dag.schedule)) is not None:
            yield from written_leaves_of(condition)
        for task in dag.tasks.values():
            yield from task.outlets
            yield from (one for one in task.inlets if not isinstance(one, AssetRef))


def _assets(module: ModuleType, dags: Iterable[DAG]) -> Iterator[Asset]:
    seen = set[int]()
    for leaf in _leaves(module, dags):
        if isinstance(leaf, Asset) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield leaf


def _aliases(module: ModuleType, dags: Iterable[DAG]) -> Iterator[AssetAlias]:
    return (leaf for leaf in _leaves(module, dags) if isinstance(leaf, AssetAlias))


def file_error(error: BaseException, file: str, relative: str) -> DagFileError:
    """Return an error that says why the import failed, and at which line of the file.

    Args:
        file: The file's full path.
        relative: The file's path in the DAGs folder.
    """
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
    hint = error.hint if isinstance(error, TriggererError) else None
    match error:
        case SyntaxError() if error.filename == file:
            return DagFileError(f"syntax error: {error.msg}", file=relative, line=error.lineno)
        case SyntaxError() if error.filename is None:
            reason = f"syntax error: {error.msg}"
        case SyntaxError():
            reason = f"syntax error in {error.filename}:{error.lineno}: {error.msg}"
        case SystemExit():
            reason = f"it calls sys.exit({error.code!r}) while it is imported"
        case DagError():
            reason = error.message
        case TriggererError():
            reason = f"{type(error).__name__}: {error.message}"
        case TypeError() if (explained := explain_unknown_argument(error)) is not None:
            reason, hint = explained.message, explained.hint
        case _:
            reason = f"{type(error).__name__}: {_message_of(error)}"
            last = frames[-1] if frames else None
            if last is not None and last.filename != file and not last.filename.startswith("<"):
                reason += f" (raised at {last.filename}:{last.lineno})"
            hint = _import_hint(error, file, line) or install_hint(error)
    return DagFileError(reason, file=relative, line=line, hint=hint)


def _import_hint(error: BaseException, file: str, line: int | None) -> str | None:
    match error:
        case ModuleNotFoundError():
            return explain_missing_airflow(error, file, line)
        case ImportError():
            return explain_unknown_import(error)
    return None


def _message_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001  (users' code, too)
        return f"(its message raises {type(other).__name__})"


def _problem(warning: warnings.WarningMessage, folder: DagsFolder) -> Problem:
    try:
        file = folder.relative(warning.filename)
    except ValueError:
        file = warning.filename
    return Problem(file, warning.lineno, f"{warning.category.__name__}: {warning.message}")
