"""The identity of a task's output.

The identity is equal in each attempt of a run, so a writer recognizes the rows that an earlier attempt has written.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Final

_DIGITS: Final = 32
"""The length of a token: 32 hexadecimal digits (128 bits). Some systems would refuse names with a longer token."""


def output_token(dag_id: str, run_id: str, task_id: str, repetition: int) -> str:
    """Return the token: 32 hexadecimal digits that no other output has.

    Args:
        repetition: How often the task was cleared, see `Repeat.cleared`. Retries do not count.
    """
    # JSON separates the names unambiguously, whichever characters they contain.
    parts = json.dumps([dag_id, run_id, task_id, repetition])
    return sha256(parts.encode()).hexdigest()[:_DIGITS]
