"""Tells what to install if a client library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra to install in the error about a missing module.

    Use it where a package of a broker imports its client library. Such a package imports the library late, so that its
    triggers, and so DAG files, load without the library.

    Raises:
        ModuleNotFoundError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} (pip install 'triggerer[{extra}]')") from error
