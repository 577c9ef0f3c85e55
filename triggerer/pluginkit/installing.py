"""What to install where a client library is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Have a module that is missing named with the extra that brings it: around a package's imports.

    For packages whose triggers do without the library: then it is not the DAG file that says so.

    Raises:
        ModuleNotFoundError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} (pip install 'triggerer[{extra}]')") from error
