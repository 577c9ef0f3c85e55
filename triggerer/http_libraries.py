"""The errors of the HTTP libraries that client libraries use: httpx, or its successor httpx2 if that is installed."""

from __future__ import annotations

from importlib import import_module


def http_errors() -> tuple[type[Exception], ...]:
    """Return the error classes for a missing answer and for an invalid URL, of each library that is installed."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        try:
            library = import_module(name)
        except ImportError:
            continue
        found += [library.HTTPError, library.InvalidURL]
    return tuple(found)
