"""Loads a trigger class by its class path: from installed plugins, allowed modules, or files of the DAGs folder."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path
from typing import Final, NamedTuple

from triggerer.abc import BaseEventTrigger
from triggerer.errors import PluginError
from triggerer.observability.logging_setup import undo_changes
from triggerer.plugins.folder import DagsFolder

WATCHERS: Final = "triggerer.watchers"
PRODUCERS: Final = "triggerer.producers"


TrialImport = Callable[[DagsFolder, Path], None]
"""Imports a file of the folder in another process. Raises `PluginError` if the import ends that process, or hangs."""


class Plugin(NamedTuple):
    """A plugin that an entry point names. `error` says why the plugin cannot be used; None: it can be used."""

    group: str
    name: str
    module: str
    error: str | None


@lru_cache(maxsize=1)
def plugin_modules() -> frozenset[str]:
    """Return the modules that entry points name. Cached, because installed packages do not change in a process."""
    return frozenset(
        point.module for group in (WATCHERS, PRODUCERS) for point in entry_points(group=group)
    )


def list_plugins() -> list[Plugin]:
    """Import every plugin, and return all plugins, sorted by group and name. `error` says why an import failed."""
    plugins = []
    for group in (WATCHERS, PRODUCERS):
        for point in sorted(entry_points(group=group)):
            try:
                importlib.import_module(point.module)
                error = None
            except Exception as failure:  # noqa: BLE001  (the boundary: one plugin, not the process)
                error = _reason(failure)
            plugins.append(Plugin(group, point.name, point.module, error))
    return plugins


def load_trigger_class(
    classpath: str,
    *,
    dags_folder: Path | None,
    allowed_modules: Iterable[str] = (),
    try_first: TrialImport | None = None,
) -> type[BaseEventTrigger]:
    """Return the class, from an entry point's module, an allowed module, or a file of the DAGs folder.

    The import runs users' code, and blocks until that code returns. If any imported file of the DAGs folder has
    changed, the files of the folder are imported again.

    Args:
        classpath: `module.Class`, as `serialize()` returned it; `Class` may be nested.
        dags_folder: The folder of the DAG files. None: no class is loaded from a DAG file.
        allowed_modules: Further modules from which a class may be loaded. Submodules of these modules are allowed, too.
        try_first: Called before a file of the folder is imported, see `TrialImport`. None: there is no trial.
    Raises:
        PluginError: No such module or file has the class, the class is no `BaseEventTrigger`, or its import fails, for
            instance because an SDK is missing.
    """
    parts = classpath.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise PluginError(f"{classpath!r} is not the path of a class", hint="it is module.Class")
    allowed = plugin_modules() | set(allowed_modules)
    # Try the longest module first, because a package may have a module and a class with the same name.
    for length in range(len(parts) - 1, 0, -1):
        module, names = ".".join(parts[:length]), parts[length:]
        if _is_below(module, allowed):
            if length > 1 and not _exists(module):
                continue
            return _class_in(_import(module, classpath), names, classpath)
        if dags_folder is not None:
            folder = DagsFolder(dags_folder)
            if (file := folder.file_of(module)) is not None:
                return _class_in(_import_file(folder, file, classpath, try_first), names, classpath)
    raise PluginError(
        f"{classpath} must not be loaded: it is neither in a plugin, nor in a file of the DAGs folder, "
        "nor in an allowed module",
        hint="install it with an entry point in the group triggerer.watchers",
    )


def _is_below(module: str, allowed: Iterable[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in allowed)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent is no package, so the name is a class in it
        return False
    except Exception:  # noqa: BLE001  (a parent raises while it is imported: _import() says so)
        return True


def _import(module: str, classpath: str) -> object:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{classpath} cannot be loaded: {_reason(error)}", hint=install_hint(error)
        ) from error


def _import_file(
    folder: DagsFolder, file: Path, classpath: str, try_first: TrialImport | None
) -> object:
    if not folder.is_current():
        folder.forget()
    try:
        if try_first is not None and not folder.has_imported(file):
            try_first(folder, file)
        with _restoring_process_state():
            return folder.import_file(file)
    except PluginError as error:
        raise PluginError(
            f"{classpath} cannot be loaded: {error.message}", hint=error.hint
        ) from error
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{classpath} cannot be loaded from {file}: {_reason(error)}", hint=install_hint(error)
        ) from error


@contextmanager
def _restoring_process_state() -> Iterator[None]:
    """After the block, restore the working directory and the logging setup, which a user's file may have changed."""
    with ExitStack() as undoing:
        undoing.callback(undo_changes)
        # The service's user may have no access to the working directory, for instance if root used `runuser`.
        with suppress(OSError):
            here = os.open(".", os.O_PATH | os.O_DIRECTORY)
            undoing.callback(os.close, here)
            undoing.callback(os.fchdir, here)
        yield


def _class_in(module: object, names: list[str], classpath: str) -> type[BaseEventTrigger]:
    found = module
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise PluginError(f"{classpath}: there is no {name!r}") from error
    if not isinstance(found, type) or not issubclass(found, BaseEventTrigger):
        raise PluginError(f"{classpath} is not a BaseEventTrigger")
    return found


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def install_hint(error: BaseException) -> str | None:
    """Return the package or extra to install for a missing module; None if the error has another cause."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    module = error.name.partition(".")[0].lower()
    extras = _extras()
    # Some extras include other extras, so name the smallest extra that has the module.
    holding = sorted(
        (len(modules), extra) for extra, modules in extras.items() if module in modules
    )
    if holding:
        return f"pip install 'triggerer[{holding[0][1]}]'"
    return f"install the package that provides the module {error.name}"


def _extras() -> dict[str, list[str]]:
    """Return the modules that each extra installs. A module is assumed to be named like its distribution."""
    try:
        requirements = requires("triggerer") or []
    except PackageNotFoundError:  # triggerer is not installed, but run from its sources
        requirements = []
    extras: dict[str, list[str]] = {}
    for requirement in requirements:
        if found := re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", requirement):
            extras.setdefault(found[2], []).append(found[1].replace("-", "_").lower())
    return extras
