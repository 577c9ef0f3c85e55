"""Checks Spark's settings and packages that a DAG file names, and tells which settings need another JVM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from triggerer.errors import DagError

_COORDINATE: Final = re.compile(r"[\w.\-]+:[\w.\-]+:[\w.\-]+")
_OURS: Final = {
    "spark.master": "only the configuration sets it, for all runs: [spark] master",
    "spark.remote": "only the configuration sets it, for all runs: [spark] remote",
    "spark.api.mode": "only the configuration sets it, for all runs: [spark] mode",
    "spark.jars.packages": "name them in spark_packages or packages",
}
_RUNTIME: Final = re.compile(
    r"spark\.sql\.(?!warehouse\.dir$|extensions$|catalogImplementation$|catalog\.|streaming\.streamingQueryListeners$"
    r"|queryExecutionListeners$|hive\.metastore\.|globalTempDatabase$|cache\.serializer$"
    r"|event\.truncate\.length$|legacy\.sessionInitWithConfigDefaults$).*"
)


def checked_conf(given: object, what: str) -> dict[str, str]:
    """Return the settings as text by key.

    Raises:
        DagError: A key does not begin with `spark.`, a value has a wrong type, or a DAG must not set the key.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise DagError(f"{what} must be a mapping of Spark's settings, not {given!r}")
    conf = dict[str, str]()
    for key, value in given.items():
        if not isinstance(key, str) or not key.startswith("spark."):
            raise DagError(f"{what}: {key!r} is no setting of Spark: its name begins with spark.")
        if key in _OURS:
            raise DagError(f"{what} cannot set {key}", hint=_OURS[key])
        if not isinstance(value, str | bool | int | float):
            raise DagError(f"{what}: {key} must be text, a number or a bool, not {value!r}")
        conf[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return conf


def checked_packages(given: object, what: str) -> tuple[str, ...]:
    """Return the Maven coordinates.

    Raises:
        DagError: A value is not a Maven coordinate.
    """
    many = (given,) if isinstance(given, str) else given
    if not isinstance(many, list | tuple):
        raise DagError(f"{what} must be Maven coordinates, not {given!r}")
    for one in many:
        if not isinstance(one, str) or not _COORDINATE.fullmatch(one):
            raise DagError(
                f"{what}: {one!r} is no Maven coordinate",
                hint="it has the form group:artifact:version",
            )
    return tuple(dict.fromkeys(many))


def is_static(key: str) -> bool:
    """Return whether a change of the setting needs a new JVM. Other settings can differ between sessions of one JVM."""
    return _RUNTIME.fullmatch(key) is None
