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
from triggerer.errors import ConfigurationError, DagError, NotificationFailed

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
        ConfigurationError: Apprise is not installed.
        NotificationFailed: For some targets, the reference cannot be resolved, or the target did not accept the
            message, even after further attempts. The other targets have the message.
    """
    from triggerer.config import load_connections
    from triggerer.notifications.apprise_library import require_apprise
    from triggerer.observability.target_names import target_names

    require_apprise()
    file = load_connections().file
    base = file.parent if file else Path()
    failed = {
        name: error
        for name, one in zip(target_names(written), written, strict=True)
        if (error := _send(one, base, message))
    }
    if failed:
        raise NotificationFailed(failed)


def _send(written: str, base: Path, message: NotificationText) -> str | None:
    """Send the message, in up to three attempts; return the error of the last attempt, or None after a success.

    Args:
        written: The target's URL, or a reference to it.
        base: The folder that a relative path of a reference starts from.
    """
    from triggerer.config.references import resolve
    from triggerer.notifications.apprise_library import send

    try:
        url: str = resolve(written, "notify()", os.environ, base)
    except ConfigurationError as refused:
        return str(refused)
    error = send(url, message)
    for delay in _DELAYS_S:
        if error is None:
            break
        # `time.sleep` is allowed here: a callback is a plain function, and the worker that calls it has no event loop.
        time.sleep(delay)
        error = send(url, message)
    return error
