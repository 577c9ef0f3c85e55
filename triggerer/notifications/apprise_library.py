"""The one module that calls Apprise: it checks URLs of targets, and sends one message.

The import of Apprise takes a second, and Apprise blocks while it sends. So the service calls this module in a child
process. Apprise reports errors only in its log, which shows secrets, so this module removes the secrets.
"""

from __future__ import annotations

import importlib.util
import logging
import re
from typing import Any, Final

from triggerer.domain.notifications import NotificationText
from triggerer.errors import ConfigurationError
from triggerer.observability.redaction import HIDDEN

_PIECE: Final = re.compile(r"[^/:@?&=#,\s]+")
_SHORTEST: Final = 4
"""The fewest characters of a secret piece of a URL. Shorter pieces occur by chance in any text."""


def require_apprise() -> None:
    """Check that Apprise is installed, without importing it.

    Raises:
        ConfigurationError: Apprise is not installed.
    """
    if importlib.util.find_spec("apprise") is None:
        raise ConfigurationError(
            "notifications need the library apprise, which is not installed",
            hint="pip install 'triggerer[notify]'",
        )


def is_understood(url: str) -> bool:
    """Return whether Apprise knows the URL's scheme, and accepts its parts."""
    return _target_of(url) is not None


def send(url: str, message: NotificationText) -> str | None:
    """Send a message to one target. Blocks until the target has answered; any thread may call this.

    Returns:
        None if the target accepted the message, and otherwise the reason, without secrets.
    """
    target = _target_of(url)
    if target is None:
        return "Apprise does not understand its URL"
    reason = _notify(target, message)
    return None if reason is None else _without_secrets(reason, url, target)


def _target_of(url: str) -> Any:
    """Return Apprise's object for the URL, or None if Apprise does not understand it."""
    import apprise

    _keep_its_log()
    try:
        return apprise.Apprise.instantiate(url, suppress_exceptions=True)
    except Exception:  # noqa: BLE001  (a URL that makes a plugin raise is not understood)
        return None


def _keep_its_log() -> None:
    """Keep Apprise's log lines out of the service's log, because they contain parts of URLs.

    Apprise's own handlers still get the lines, to collect the reasons of failures.
    """
    logger = logging.getLogger("apprise")
    if logger.propagate:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def _notify(target: Any, message: NotificationText) -> str | None:
    import apprise

    sender = apprise.Apprise()
    sender.add(target)
    try:
        # Targets that take HTML, such as mails, get the text with its line breaks.
        result = sender.notify(
            message.body, message.title, notify_type=message.severity, body_format="text"
        )
    except Exception as error:  # noqa: BLE001  (a plugin of Apprise may raise anything)
        return f"{type(error).__name__}: {error}"
    if result:
        return None
    said = [entry.message for entry in result.logs()]
    return said[-1] if said else "Apprise gives no reason"


def _without_secrets(text: str, url: str, target: Any) -> str:
    """Hide the pieces of the URL in the text.

    Pieces of fewer than `_SHORTEST` characters stay, and pieces that the target's `url(privacy=True)` shows.
    """
    shown = set(_PIECE.findall(target.url(privacy=True)))
    pieces = {one for one in _PIECE.findall(url) if len(one) >= _SHORTEST} - shown
    for piece in sorted(pieces, key=len, reverse=True):
        text = text.replace(piece, HIDDEN)
    return " ".join(text.split())
