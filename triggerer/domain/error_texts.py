"""Errors as they are stored, for people."""

from __future__ import annotations

import traceback
from typing import Final

from triggerer.domain.storable import storable_text

_MOST: Final = 4_000
"""Characters. All states of a host are written together."""
_MOST_OF_TRACEBACK: Final = 16_000
"""Characters, the last of them: there it says where it went wrong."""


def error_text(error: BaseException) -> str:
    """One readable line: what happened, and what caused it where the message does not say."""
    text = str(error) or type(error).__name__
    if type(error).__module__ != "triggerer.errors":
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return storable_text(text)[:_MOST]


def traceback_text(error: BaseException) -> str:
    """Where it was raised; of a long one the end."""
    return storable_text("".join(traceback.format_exception(error)))[-_MOST_OF_TRACEBACK:]
