"""Checks the arguments of triggers in DAG files, and derives names from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from triggerer.domain.authoring.airflow_names import argument_hint
from triggerer.errors import DagError
from triggerer.observability.redaction import is_secret_key

__all__ = [
    "argument_hint",
    "choice_argument",
    "default_group",
    "describe_source",
    "is_secret_key",
    "optional_text_argument",
    "text_argument",
    "texts_argument",
]


def text_argument(value: Any, what: str) -> str:
    """Return the value, a string that is not empty.

    Raises:
        DagError: The value is empty, or no string.
    """
    if not isinstance(value, str) or not value:
        raise DagError(f"{what} must be a non-empty text, not {value!r}")
    return value


def optional_text_argument(value: Any, what: str) -> str | None:
    """Return the value: None, or a string that is not empty.

    Raises:
        DagError: The value is empty, or neither None nor a string.
    """
    return None if value is None else text_argument(value, what)


def texts_argument(value: Any, what: str, *, each: str) -> list[str]:
    """Accept a string or several strings, and return a sorted list without repeats.

    Args:
        what: The name of the argument in errors, such as "topics".
        each: The name of one string in errors, such as "a topic".
    Raises:
        DagError: The list is empty, or a value is empty or no string.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or not (texts := list(texts)):
        raise DagError(f"{what} must be {each} or a list of them, not {value!r}")
    return sorted({text_argument(one, each) for one in texts})


def choice_argument(value: Any, what: str, *choices: str) -> str:
    """Return one of `choices`.

    Raises:
        DagError: The value is none of the choices.
    """
    if value not in choices:
        stated = " or ".join(f'"{choice}"' for choice in choices)
        raise DagError(f"{what} must be {stated}, not {value!r}")
    return str(value)


def default_group(*identity: Any) -> str:
    """Return the name of the default consumer group. Equal arguments give the same name in every process.

    The arguments are JSON values.
    """
    digest = hashlib.sha256(json.dumps(identity, separators=(",", ":")).encode()).hexdigest()
    return f"triggerer-{digest[:16]}"


def describe_source(kind: str, name: str, *notes: str, connection: str) -> str:
    """Return a stream's name for people: `kafka orders (group billing, connection eu)`.

    Args:
        kind: The source's kind, such as `kafka`. This is also the id of the default connection.
        connection: The connection's id. The name does not mention the default connection.
    """
    told = [*notes, *([] if connection == kind else [f"connection {connection}"])]
    return f"{kind} {name} ({', '.join(told)})" if told else f"{kind} {name}"
