"""Names the extra to install in the error about a missing client library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """If an import in the block fails because a module is missing, add the name of the extra to the error's message.

    Use this where a broker's package imports its client library. Triggers import the broker's package only when they
    connect, so a DAG file with the broker's triggers loads without the library.

    Raises:
        ModuleNotFoundError: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} (pip install 'triggerer[{extra}]')") from error
