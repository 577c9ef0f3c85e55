"""Imports the modules that runs often need into the fork server, so that no run waits for an import."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import triggerer

logger = logging.getLogger(__name__)

FOR_SPARK: Final = (
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.types",
    "pyspark.cloudpickle",
    "pyspark.sql.pandas.types",
    # PySpark imports these two modules late, and the import would delay a run by 40 ms.
    "pyspark.sql.classic.dataframe",
    "pyspark.testing.utils",
    "triggerer.worker.spark.sessions.shared",
)
_ON_CONNECT: Final = ("grpc", "pyspark.sql.connect.session")
_NUMBERS: Final = ("numpy", "pandas", "pyarrow")
_OFFERED: Final = frozenset({"pyspark.sql", *_NUMBERS})
_PLUGINS: Final = ("watchers.", "producers.")
"""The packages of this distribution that DAG files import. They are slow to import: 110 modules for Kafka."""
_INSTALLED_IN: Final = tuple(
    str(Path(triggerer.__file__).parents[1] / package) + os.sep
    for package in ("watchers", "producers")
)


def importable_ahead(names: Iterable[str]) -> list[str]:
    """Return the modules that the fork server may import for later runs.

    Users' modules are left out: they may change, and they may start threads, which a fork does not copy.
    """
    return [
        name
        for name in names
        if name in _OFFERED or (name.startswith(_PLUGINS) and _is_installed(name))
    ]


def _is_installed(name: str) -> bool:
    """True if the module is from this distribution, and not from a package of the same name in the DAGs folder."""
    return str(getattr(sys.modules[name], "__file__", "")).startswith(_INSTALLED_IN)


class Preloaded:
    """Imports modules into the fork server, and remembers modules that runs have imported.

    Args:
        spark: The settings of `[spark]`, as JSON.
    """

    def __init__(self, spark: Mapping[str, Any]) -> None:
        self._is_connect = bool(spark.get("remote"))
        self._tried: set[str] = set()
        self._remembered: set[str] = set()

    def remember(self, names: Iterable[str]) -> None:
        """Remember the modules that a run has imported."""
        self._remembered |= {
            name for name in names if name in _OFFERED or name.startswith(_PLUGINS)
        }

    def load_remembered(self) -> bool:
        """Import the remembered modules. Return True if at least one was new."""
        remembered, self._remembered = self._remembered, set()
        return self.add(sorted(remembered))

    def add(self, names: Iterable[str]) -> bool:
        """Import modules. Return True if at least one was new."""
        wanted = set(names)
        if wanted & set(FOR_SPARK):
            wanted |= {*FOR_SPARK, *_NUMBERS}
            if self._is_connect:
                wanted |= set(_ON_CONNECT)
        new = {name for name in wanted - self._tried if name not in sys.modules}
        self._tried |= wanted
        for name in sorted(new):
            _load(name)
        return any(name in sys.modules for name in new)


def _load(name: str) -> None:
    try:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    except Exception:
        # The run that needs the module imports it again, and gets the error.
        logger.exception("%s cannot be imported ahead", name)
