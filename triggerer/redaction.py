"""What of a setting may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"
_SECRET_KEY = re.compile(
    r"password|passwd|secret|token|credential|api_?key|private|sasl_jaas", re.IGNORECASE
)


def redact(key: str, value: Any) -> Any:
    """Return the value as it may be shown: secrets hidden, references to them left readable."""
    if isinstance(value, Mapping):
        return {name: redact(str(name), item) for name, item in value.items()}
    if isinstance(value, str):
        if is_reference(value):
            return value
        if _SECRET_KEY.search(key):
            return HIDDEN
        return re.sub(r"(://[^:/@\s]*):\S*@", rf"\1:{HIDDEN}@", value)
    return value


def is_reference(value: str) -> bool:
    """Whether the value says where a secret is, rather than what it is."""
    return value.startswith(("env:", "file:")) and not value.startswith("file://")
