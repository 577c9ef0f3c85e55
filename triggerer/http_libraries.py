"""The errors of the HTTP libraries that client libraries use: httpx and its successor httpx2."""

from __future__ import annotations

from importlib import import_module


def http_errors() -> tuple[type[Exception], ...]:
    """Return each installed library's error classes for a request that gets no answer, and for an invalid URL."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        try:
            library = import_module(name)
        except ImportError:
            continue
        found += [library.HTTPError, library.InvalidURL]
    return tuple(found)
