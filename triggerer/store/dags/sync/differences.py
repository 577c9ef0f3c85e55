"""Tracks the differences that an update of the store has written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy.orm.attributes import flag_modified

from triggerer.domain.dag_files.missing_files import MissingFiles
from triggerer.domain.dag_files.parsed import Problem
from triggerer.store.streams.opening import Openings


@dataclass(slots=True)
class Changed:
    """The rows that an update has written, and the state of new streams and missing files.

    If an update writes nothing, only `openings`, `is_restoring` and `missing` may have values.
    """

    files: set[str] = field(default_factory=set)
    errors: list[Problem] = field(default_factory=list)
    """All errors of each file whose errors or warnings have changed."""
    warnings: list[Problem] = field(default_factory=list)
    repaired_or_broken: set[str] = field(default_factory=set)
    """The files that could not be loaded before this update and can be loaded now, or the reverse."""
    dag_ids: set[str] = field(default_factory=set)
    stream_digests: set[str] = field(default_factory=set)
    openings: Openings = field(default_factory=Openings)
    is_restoring: bool = False
    """True after a restore of the database, until all DAG files have been read."""
    missing: MissingFiles = field(default_factory=MissingFiles)
    """All files that are missing from the folder, including files that were missing at earlier updates."""


def assign(row: object, **values: Any) -> bool:
    """Set each column that differs from the given value; return True if any column did."""
    different = {
        name: value for name, value in values.items() if _differs(getattr(row, name), value)
    }
    for name, value in different.items():
        setattr(row, name, value)
        if isinstance(value, dict | list):
            # Mark the column as changed, because to SQLAlchemy `{"n": 1}` and `{"n": True}` are equal.
            flag_modified(row, name)
    return bool(different)


def _differs(before: Any, after: Any) -> bool:
    if before != after:
        return True
    # To Python, 1, 1.0 and True are equal. But a task sees the difference in its params.
    return isinstance(after, dict | list) and _sorted(before) != _sorted(after)


def _sorted(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
