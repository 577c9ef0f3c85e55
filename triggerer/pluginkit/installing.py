"""Tells what to install if a client library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra to install in the error about a missing module. Use it around a package's imports.

    Only a package that imports its client library late needs this. Its triggers, and so DAG files, load without the
    library.

    Raises:
        ModuleNotFoundError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} (pip install 'triggerer[{extra}]')") from error
