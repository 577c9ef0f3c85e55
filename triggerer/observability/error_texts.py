"""Turns errors into texts for the store, without the secrets that this process knows.

Only this process knows these secrets, so it hides them before a text is stored. Other secrets, such as the value after
`password=`, are hidden when a text is shown. Searching for other secrets here would take milliseconds for each
traceback, and a thousand watchers may fail at once.
"""

from __future__ import annotations

import traceback
from typing import Final

from triggerer.domain.text.storable import storable_text
from triggerer.errors import TriggererError
from triggerer.observability.redaction import hide_known

_MOST: Final = 4_000
"""The most characters of an error's message. One transaction writes the errors of all watchers, so the limit is low."""
_MOST_OF_TRACEBACK: Final = 16_000
"""The most characters of a traceback. Its end stays, because the end shows where the error was raised."""


def error_text(error: BaseException) -> str:
    """Return the error's message. The name of the type comes first unless the error is a `TriggererError`.

    The message of a `TriggererError` is a sentence for people. The name of its class may be private, and adds nothing.
    """
    name, text = type(error).__name__, str(error)
    if not text:
        text = name
    elif not isinstance(error, TriggererError):
        text = f"{name}: {text}"
    return hide_known(storable_text(text))[:_MOST]


def traceback_text(error: BaseException) -> str:
    """Return the traceback, or its end if it is long."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception as other:  # noqa: BLE001  (formatting calls code of the exception, which may raise anything)
        text = f"{type(error).__name__} (its traceback cannot be shown: {type(other).__name__})"
    return hide_known(storable_text(text))[-_MOST_OF_TRACEBACK:]
