"""Resolves values that refer to a secret in an environment variable (`env:NAME`) or a file (`file:PATH`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from triggerer.config.home_directory import expand_user
from triggerer.errors import ConfigurationError
from triggerer.observability.redaction import is_reference, remember_secret, remember_secrets_in

_URL: Final = re.compile(r"[A-Za-z][\w+.\-]*://\S*")


def variable_in(value: Any) -> frozenset[str]:
    """Return the environment variable that a setting refers to (`env:NAME`), as a set of at most one name."""
    if isinstance(value, str) and value.startswith("env:"):
        return frozenset({value.removeprefix("env:")})
    return frozenset()


def resolve(value: Any, name: str, environ: Mapping[str, str], base: Path) -> Any:
    """Return the value with references replaced by their targets. Each target counts as a secret.

    Args:
        name: The name of the setting, for error messages.
        base: The folder that relative paths start from.
    Raises:
        ConfigurationError: The variable is not set, or the file cannot be read.
    """
    if isinstance(value, Mapping):
        # A table within a connection, such as the headers of an HTTP connection.
        return {key: resolve(one, f"{name}.{key}", environ, base) for key, one in value.items()}
    if isinstance(value, list):
        return [resolve(one, name, environ, base) for one in value]
    if not isinstance(value, str) or not is_reference(value):
        return value
    kind, _, where = value.partition(":")
    if kind == "env":
        if where not in environ:
            raise ConfigurationError(
                f"{name} refers to the environment variable {where}, which is not set"
            )
        found = environ[where]
        _remember(found)
        return found
    try:
        # Editors end files with a line break, which is not part of the secret.
        found = (base / expand_user(Path(where))).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{name} refers to the file {where}, which cannot be read: {error}"
        ) from error
    _remember(found)
    return found


def _remember(found: str) -> None:
    remember_secrets_in("", found)
    if not _URL.fullmatch(found):
        # The whole text is secret. A URL is not: the call above has remembered its secret parts.
        remember_secret(found)
    if found.lstrip().startswith("{"):
        # The text may be credentials in JSON. Remember each secret value, too, because an error may quote a single
        # value.
        with suppress(ValueError):
            remember_secrets_in("", json.loads(found))
