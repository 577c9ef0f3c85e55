"""Tells what to install if a client library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Add to the error about a missing module the extra that installs the module.

    Use this where a broker's package imports its client library. Triggers import the broker's package only when they
    connect, so a DAG file with the broker's triggers loads without the library.

    Raises:
        ModuleNotFoundError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} (pip install 'triggerer[{extra}]')") from error
