"""Decorators that turn a function into the handler of a route, with the role that the route needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import delete, get, patch, post
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import ResponseSpec

from triggerer.api.access.authorizing import PUBLIC, RUN

Decorator = Callable[[Callable[..., Any]], HTTPRouteHandler]


def reads(path: str, *, role: str = "viewer", by_run: bool = False, **options: Any) -> Decorator:
    """Make a handler of GET.

    Args:
        by_run: Whether the route also accepts run tokens. The handler must then check that the token belongs to the
            requested run (`Access.require_run`).
    """
    return get(path, opt={"role": role, RUN: by_run}, **options)


def public(path: str, **options: Any) -> Decorator:
    """Make a handler of GET that needs no token."""
    return get(path, opt={"role": PUBLIC}, **options)


def creates(
    path: str, *, role: str = "operator", by_run: bool = False, status: int = 200, **options: Any
) -> Decorator:
    """Make a handler of POST."""
    return post(path, opt={"role": role, RUN: by_run}, status_code=status, **options)


def answers_repeats(answer: Any) -> dict[int, ResponseSpec]:
    """Describe, for `responses=`, that a repeat of a request is answered with 200 and the first result."""
    description = "The request is a repeat. This is the first result."
    return {200: ResponseSpec(answer, description=description, generate_examples=False)}


def alters(path: str, *, role: str = "operator", **options: Any) -> Decorator:
    """Make a handler of PATCH."""
    return patch(path, opt={"role": role}, **options)


def deletes(path: str, *, role: str = "operator", **options: Any) -> Decorator:
    """Make a handler of DELETE."""
    return delete(path, opt={"role": role}, status_code=200, **options)
