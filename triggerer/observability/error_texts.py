"""Errors as they are stored, for people: without the secrets that this process knows.

Whoever shows them, such as a command, does not know these, and hides what is told by its place. That takes some
milliseconds for a traceback, which is too long here: a thousand watchers may fail at once.
"""

from __future__ import annotations

import traceback
from typing import Final

from triggerer.domain.storable import storable_text
from triggerer.observability.redaction import hide_known

_MOST: Final = 4_000
"""Characters. All states of a host are written together."""
_MOST_OF_TRACEBACK: Final = 16_000
"""Characters, the last of them: there it says where it went wrong."""


def error_text(error: BaseException) -> str:
    """One readable line: what happened, and what caused it where the message does not say."""
    text = str(error) or type(error).__name__
    if type(error).__module__ != "triggerer.errors":
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return hide_known(storable_text(text))[:_MOST]


def traceback_text(error: BaseException) -> str:
    """Where it was raised; of a long one the end."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as other:  # noqa: BLE001  (an exception may have anything for its text, its line or its notes)
        text = f"{type(error).__name__} (its traceback cannot be shown: {type(other).__name__})"
    return hide_known(storable_text(text))[-_MOST_OF_TRACEBACK:]
