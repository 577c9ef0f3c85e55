"""The paths of runs' logs."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._+:@=-]")
_LONGEST_NAME: Final = 200


def log_path(home: str, dag_id: str, run_id: str) -> str:
    """Return `<home>/logs/<dag_id>/<run_id>.log`, with both ids changed into valid file names."""
    return f"{home}/logs/{_file_name(dag_id)}/{_file_name(run_id)}.log"


def _file_name(identifier: str) -> str:
    safe = _UNSAFE.sub("_", identifier)[:_LONGEST_NAME]
    if safe == identifier and not safe.startswith("."):
        return safe
    # The digest separates identifiers that become equal when characters are replaced.
    digest = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{safe.lstrip('.')}-{digest}"
