"""What an update has written."""

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
    """What was written; all empty if nothing was."""

    files: set[str] = field(default_factory=set)
    errors: list[Problem] = field(default_factory=list)
    """All of the files whose errors or warnings are others than before."""
    warnings: list[Problem] = field(default_factory=list)
    repaired_or_broken: set[str] = field(default_factory=set)
    """The files that load now and did not before, or the other way round."""
    dag_ids: set[str] = field(default_factory=set)
    stream_digests: set[str] = field(default_factory=set)
    openings: Openings = field(default_factory=Openings)
    missing: MissingFiles = field(default_factory=MissingFiles)
    """The files that are not in the folder, whether or not that is new."""


def assign(row: object, **values: Any) -> bool:
    """Set what differs; return whether anything did. An equal value that is assigned would be written too."""
    different = {
        name: value for name, value in values.items() if _differs(getattr(row, name), value)
    }
    for name, value in different.items():
        setattr(row, name, value)
        if isinstance(value, dict | list):
            # SQLAlchemy compares by Python's equality too, and would leave the column out.
            flag_modified(row, name)
    return bool(different)


def _differs(before: Any, after: Any) -> bool:
    if before != after:
        return True
    # To Python, 1, 1.0 and True are equal. A task sees the difference in its params.
    return isinstance(after, dict | list) and _sorted(before) != _sorted(after)


def _sorted(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
