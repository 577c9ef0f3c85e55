"""Guesses what a DAG file's author meant by an unknown argument or import, such as a name that Airflow uses."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from triggerer.domain.authoring.airflow_names import argument_hint, import_hint
from triggerer.errors import DagError
from triggerer.nearest import hint

_UNEXPECTED: Final = re.compile(r"([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'")
"""Matches Python's message. The traceback does not show the called function, because its call never began."""
_MADE_BY: Final = (".__init__", ".__new__")
"""Endings of the function's name in Python's message, if a class was called."""
_NOT_THERE: Final = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_AIRFLOW: Final = "airflow"
_OURS: Final = "triggerer"
_USUAL: Final = ("DAG", "Asset", "task")


def explain_unknown_argument(error: TypeError) -> DagError | None:
    """Return an error about an argument that the called function or class does not have.

    Return None if the `TypeError` has another cause.
    """
    said = _UNEXPECTED.match(str(error))
    if said is None:
        return None
    path, argument = said.groups()
    for ending in _MADE_BY:
        path = path.removesuffix(ending)
    called = _find(path, error.__traceback__)
    if called is None:
        return None
    known = _argument_names(called)
    return DagError(f"{path} has no argument {argument!r}", hint=argument_hint(argument, known))


def explain_missing_airflow(error: ModuleNotFoundError, file: str, line: int | None) -> str | None:
    """Return what to import instead of an Airflow name, or advice to install Airflow. None: it is another module."""
    if (error.name or "").partition(".")[0] != _AIRFLOW:
        return None
    names = _imported_at(file, line)
    meant = import_hint(names or _USUAL)
    if meant is None:
        return "install Airflow next to triggerer, see docs/howto/moving-from-airflow.md"
    return f"{meant}; Airflow's own triggers need Airflow, see docs/howto/moving-from-airflow.md"


def explain_unknown_import(error: ImportError) -> str | None:
    """Return a hint about a name that cannot be imported from a module; None if there is nothing to suggest."""
    said = _NOT_THERE.match(str(error))
    if said is None:
        return None
    name, module = said.groups()
    if module.partition(".")[0] == _OURS and (meant := import_hint([name])) is not None:
        return meant
    found = sys.modules.get(module)
    return hint(name, getattr(found, "__all__", None) or dir(found))


def _find(path: str, trace: TracebackType | None) -> Callable[..., Any] | None:
    """Search the calling code, then all modules, for the function or class with this qualified name."""
    for names in _namespaces(trace):
        found: Any = names
        with suppress(Exception):
            first, *others = path.split(".")
            found = names[first]
            for name in others:
                found = getattr(found, name)
            if callable(found) and getattr(found, "__qualname__", path) == path:
                called: Callable[..., Any] = found
                return called
    return None


def _namespaces(trace: TracebackType | None) -> Iterator[dict[str, Any]]:
    frame: FrameType | None = None
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
    if frame is not None:
        yield frame.f_locals
        yield frame.f_globals
    for module in list(sys.modules.values()):
        yield getattr(module, "__dict__", {})


def _argument_names(called: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return []
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [one.name for one in parameters if one.kind in by_name]


def _imported_at(file: str, line: int | None) -> list[str]:
    """Return the names that the file imports from Airflow. Names that it imports in `line` come first."""
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    found = [
        (node.lineno != line, name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == _AIRFLOW
        for name in (alias.name for alias in node.names)
    ]
    return list(dict.fromkeys(name for _, name in sorted(found, key=lambda one: one[0])))
