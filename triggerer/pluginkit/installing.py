"""Tells what to install if a client library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra to install in the error about a missing module.

    Use it where a broker's package imports its client library. Triggers import this package only when they connect. So
    a DAG file with the broker's triggers loads without the library.

    Raises:
        ModuleNotFoundError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} (pip install 'triggerer[{extra}]')") from error
