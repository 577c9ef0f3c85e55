"""`notify`: a callback for DAGs that tells people how a run ended."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from triggerer.domain.notifications import NotificationText
from triggerer.errors import DagError, NotificationFailed

Callback = Callable[[Mapping[str, Any]], None]
_DELAYS_S: Final = (1.0, 4.0)
"""The times between the attempts. All callbacks of a run together have 60 s."""


def notify(*urls: str) -> Callback:
    """Return a callback for `on_failure_callback` or `on_success_callback` that notifies these targets.

    Args:
        urls: URLs of Apprise, such as `slack://…`. Each may be `env:NAME` or `file:PATH`; the variable or file is read
            when the callback is called. A relative path is relative to the folder of the configuration file.
    Raises:
        DagError: No URL is given, or an argument is neither a URL nor a reference.
    """
    if not urls:
        raise DagError("notify() needs the URL of a target, such as notify('slack://...')")
    for number, one in enumerate(urls, 1):
        if not _is_target(one):
            # The text may be a secret, so it is not shown.
            raise DagError(
                f"notify(): argument {number} is neither a URL nor env:NAME or file:PATH"
            )

    def notify(context: Mapping[str, Any]) -> None:
        _notify_all(urls, _message_about(context))

    return notify


def _is_target(given: object) -> bool:
    return isinstance(given, str) and ("://" in given or given.startswith(("env:", "file:")))


def _message_about(context: Mapping[str, Any]) -> NotificationText:
    # This import is not at the top of the module, because most processes that import a DAG file send no message.
    from triggerer.notifications.texts import Writer

    run = context["dag_run"]
    writer = Writer(socket.gethostname(), "")
    now = datetime.now(UTC)
    return writer.write_end(run.dag_id, run.run_id, context["state"], context["error"], now)


def _notify_all(written: Sequence[str], message: NotificationText) -> None:
    """Send the message to all targets.

    Raises:
        ConfigurationError: Apprise is not installed, or a reference cannot be resolved.
        NotificationFailed: Some targets did not accept the message, even after further attempts.
    """
    from triggerer.notifications.apprise_library import require_apprise
    from triggerer.observability.target_names import target_names

    require_apprise()
    urls = dict(zip(target_names(written), _resolved(written), strict=True))
    failed = {name: error for name, url in urls.items() if (error := _send(url, message))}
    if failed:
        raise NotificationFailed(failed)


def _resolved(written: Sequence[str]) -> list[str]:
    from triggerer.config import load_connections
    from triggerer.config.references import resolve

    file = load_connections().file
    base = file.parent if file else Path()
    return [resolve(one, "notify()", os.environ, base) for one in written]


def _send(url: str, message: NotificationText) -> str | None:
    """Send the message, in up to three attempts; return the error of the last attempt, or None after a success."""
    from triggerer.notifications.apprise_library import send

    error = send(url, message)
    for delay in _DELAYS_S:
        if error is None:
            break
        # `time.sleep` is allowed here: a callback is a plain function, and the worker that calls it has no event loop.
        time.sleep(delay)
        error = send(url, message)
    return error
