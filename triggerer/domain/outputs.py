"""The identity of a task's output.

The identity is equal in each attempt of a run, so a writer recognizes the rows that an earlier attempt has written.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Final

_DIGITS: Final = 32
"""128 bits: no two outputs get one token by chance. Longer tokens would not fit into all names that contain a token."""


def output_token(dag_id: str, run_id: str, task_id: str, repetition: int) -> str:
    """Return a text of 32 hexadecimal digits that tells this output from every other.

    Args:
        repetition: How often the task was cleared. A retry does not change it; see `Repeat.cleared`.
    """
    # JSON keeps the names apart, whichever characters they have.
    parts = json.dumps([dag_id, run_id, task_id, repetition])
    return sha256(parts.encode()).hexdigest()[:_DIGITS]
