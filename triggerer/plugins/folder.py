"""Imports modules from the DAGs folder, and imports them again when files have changed.

The module of the file `a/b.py` is named `a.b` if that is a valid name and no installed module is named `a`. Otherwise
the module gets a generated name, by which only `DagsFolder` can import it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from triggerer.plugins.imported_since import ImportedSince

Stamp = tuple[int, int, int, int]
"""A file's modification time and change time (both in nanoseconds), its size in bytes, and its inode."""

STABLE_AFTER_S: Final = 2.0
"""A file that changed less than this number of seconds ago may be half-written, or about to be replaced."""

_GENERATED: Final = "triggerer_dag_file_"
"""The beginning of a generated module name."""

# The stamp that each file had when it was run, by absolute path. The dict is global, because `sys.modules` is global.
_stamps: dict[str, Stamp | None] = {}
# The code of each file, with the stamp that the file had when it was compiled.
_compiled: dict[str, tuple[Stamp, CodeType]] = {}
# Code is cached once its file has not changed for this time, in nanoseconds. File systems round times, so a second
# change soon after the first may leave the stamp unchanged. No file system rounds to three seconds.
_STABLE_NS: Final = 3_000_000_000


def stamp_of(path: Path | str) -> Stamp | None:
    """Return the file's stamp; None if there is no such file."""
    try:
        return read_stamp(path)
    except OSError:
        return None


def read_stamp(path: Path | str) -> Stamp:
    """Return the file's stamp, which changes with the file.

    Raises:
        OSError: The file does not exist, or its status cannot be read.
    """
    status = os.stat(path)  # noqa: PTH116  (called for each file of the folder, at each change)
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def has_just_changed(stamp: Stamp, within_s: float = STABLE_AFTER_S) -> bool:
    """Return whether the file changed in the last `within_s` seconds.

    A stamp in the future counts as old, because it comes from another machine's clock.
    """
    return 0 <= time.time_ns() - max(stamp[:2]) < within_s * 1e9


class _FreshLoader(SourceFileLoader):
    """Compiles the current version of a file, and writes no bytecode into the user's folder.

    Python's own loader runs cached bytecode while the file's size and the whole second of its
    modification time are unchanged. So after two saves within a second, Python's loader could run
    the older version. This loader caches code in memory, and compares the file's stamp.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        # Take the stamp before reading. So if the file changes in between, it is imported again.
        _stamps[path] = stamp = stamp_of(path)
        kept = _compiled.get(path)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        code = self.source_to_code(self.get_data(path), path)
        assert isinstance(code, CodeType)
        if stamp is not None and max(stamp[:2]) < time.time_ns() - _STABLE_NS:
            _compiled[path] = (stamp, code)
        return code


_roots: set[str] = set()
# The modules that the next search for a folder's own modules must look at, by the folder's path. These are the modules
# imported after a search that found none of the folder. Without an entry, the search looks at all modules.
_not_looked_at: dict[str, ImportedSince] = {}


def _is_plain(path: str) -> bool:
    """True if `os.path.abspath`, which is much slower, would return the path unchanged."""
    bounded = f"{path}/"
    return bounded[:1] == "/" and not any(part in bounded for part in ("//", "/./", "/../"))


def _open_folder(path: str) -> FileFinder:
    """Make the finder for a path below a DAGs folder. This is a hook for `sys.path_hooks`."""
    if not any(f"{path}{os.sep}".startswith(root) for root in _roots):
        raise ImportError("not below a DAGs folder", path=path)
    return FileFinder(
        path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_FreshLoader, SOURCE_SUFFIXES)
    )


class DagsFolder:
    """A folder from which modules are imported. Not thread-safe, because modules are global.

    Symbolic links are not resolved. Kubernetes mounts a ConfigMap as links to files in a hidden
    folder, whose name changes with each update.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100  (resolve() would follow links)
        self._prefix = f"{self.root}{os.sep}"

    def relative(self, path: Path | str) -> str:
        """Return the file's path below the folder, with forward slashes.

        Raises:
            ValueError: The file is not below the folder.
        """
        # Called several times per run, and `Path` is slow.
        absolute = os.path.abspath(path)  # noqa: PTH100
        if not absolute.startswith(self._prefix):
            raise ValueError(f"{absolute} is not below {self.root}")
        return absolute.removeprefix(self._prefix).replace(os.sep, "/")

    def module_name(self, path: Path | str) -> str:
        """Return the name under which the file is imported."""
        relative = self.relative(path)
        parts = relative.removesuffix(".py").split("/")
        if parts[-1] == "__init__" and len(parts) > 1:
            parts.pop()
        if all(part.isidentifier() for part in parts) and not self._is_name_reserved(parts[0]):
            return ".".join(parts)
        readable = re.sub(r"\W+", "_", relative.removesuffix(".py"))
        return f"{_GENERATED}{readable}_{hashlib.sha256(os.fsencode(relative)).hexdigest()[:8]}"

    def file_of(self, module: str) -> Path | None:
        """Return the folder's file that has this module name; None if there is no such file."""
        if module.startswith(_GENERATED):
            files = self.root.rglob("*.py")
            return next((file for file in files if self.module_name(file) == module), None)
        stem = self.root.joinpath(*module.split("."))
        for file in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
            if file.is_file() and self.module_name(file) == module:
                return file
        return None

    def import_file(self, path: Path | str) -> ModuleType:
        """Return the module of the file. Import the file unless it was imported since the last `forget`.

        Raises:
            BaseException: The error of the file's code, including `SystemExit`.
        """
        name = self.module_name(path)
        with self._importable():
            if "." in name:
                return importlib.import_module(name)
            if name in sys.modules:
                return sys.modules[name]
            spec = self._spec_of(name, path)
            assert spec.loader is not None
            module = module_from_spec(spec)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            except BaseException:
                sys.modules.pop(name, None)
                raise
            # A module may replace itself in sys.modules.
            return sys.modules.get(name, module)

    def has_imported(self, path: Path | str) -> bool:
        """True if `import_file` would return an existing module."""
        return self.module_name(path) in sys.modules

    def _spec_of(self, name: str, path: Path | str) -> ModuleSpec:
        if name.startswith(_GENERATED):
            file = str(self.root / self.relative(path))
            spec = spec_from_file_location(name, file, loader=_FreshLoader(name, file))
        else:
            # `module_name` has made sure that no installed package has this name.
            spec = PathFinder.find_spec(name, [str(self.root)])
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec

    def modules(self) -> tuple[ModuleType, ...]:
        """Return all imported modules of the folder."""
        return tuple(module for _, module in self._own_modules())

    def forget(self) -> None:
        """Forget the folder's modules. The next import reads their files from disk again."""
        for name, _ in self._own_modules():
            sys.modules.pop(name, None)
        self.look_ahead()
        for path in self.imported_files():
            _stamps.pop(str(self.root / path), None)
        # `importlib.invalidate_caches` is too slow: the next imports would also list the folders of all installed
        # packages again, which took longer than running a DAG file.
        for path, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, FileFinder) and f"{path}{os.sep}".startswith(self._prefix):
                finder.invalidate_caches()

    def look_ahead(self) -> None:
        """Search the imported modules now. If none belongs to the folder, later searches skip these modules."""
        self._own_modules()

    def imported_files(self) -> tuple[str, ...]:
        """Return the relative paths of the files that were run since `forget`, including files that failed."""
        return tuple(self.relative(path) for path in list(_stamps) if path.startswith(self._prefix))

    def is_current(self) -> bool:
        """True if all files that were run since `forget` are unchanged."""
        mine = [one for one in list(_stamps.items()) if one[0].startswith(self._prefix)]
        return all(stamp_of(path) == stamp for path, stamp in mine)

    def _own_modules(self) -> list[tuple[str, ModuleType]]:
        # A search of all loaded modules is slow, and each run needs one. So if a search finds no module of the folder,
        # the next search looks only at newer modules.
        now = ImportedSince()
        since = _not_looked_at.get(self._prefix)
        names = list(sys.modules) if since is None else since.names()
        modules = ((name, sys.modules.get(name)) for name in names)
        own = [
            (name, module)
            for name, module in modules
            if module is not None and self._contains(module)
        ]
        if not own:
            _not_looked_at[self._prefix] = now
        return own

    def _contains(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            return file.startswith(self._prefix)
        # A namespace package has no file, and may have several folders.
        paths = getattr(module, "__path__", None) or ()
        return any(str(path).startswith(self._prefix) for path in paths)

    def _is_name_reserved(self, name: str) -> bool:
        if name in sys.stdlib_module_names:
            return True
        root = str(self.root)
        elsewhere = [p for p in sys.path if p != root and (_is_plain(p) or not self._is_root(p))]
        spec = PathFinder.find_spec(name, elsewhere)
        # Without `origin`, the spec is a namespace package: any folder of this name, anywhere in `sys.path`.
        return (
            spec is not None
            and spec.origin is not None
            and not spec.origin.startswith(self._prefix)
        )

    def _is_root(self, path: str) -> bool:
        return os.path.abspath(path or ".") == str(self.root)  # noqa: PTH100

    @contextmanager
    def _importable(self) -> Iterator[None]:
        """Append the folder to `sys.path`, and leave it there. As the last entry, it hides no installed package."""
        if self._prefix not in _roots:
            _roots.add(self._prefix)
            for path in [p for p in sys.path_importer_cache if f"{p}/".startswith(self._prefix)]:
                del sys.path_importer_cache[path]
        if _open_folder not in sys.path_hooks:
            sys.path_hooks.insert(0, _open_folder)
        if str(self.root) not in sys.path:
            sys.path.append(str(self.root))
        yield

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DagsFolder) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)
