"""Sends a test to the targets of notifications, and makes the `Writer` for this installation."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from triggerer.notifications.sending import send_messages
from triggerer.notifications.texts import Writer

if TYPE_CHECKING:
    from triggerer.config import Settings

_DEADLINE: Final = timedelta(seconds=30)
_ADDRESS_FILE: Final = "api-address"


@dataclass(frozen=True, slots=True)
class TestedTarget:
    """The outcome of a test."""

    target: str
    """The name of the target, without secrets."""
    error: str | None
    """Why the target did not accept the message, or None if the target accepted it."""


def writer_for(settings: Settings) -> Writer:
    """Return the writer of messages of this installation, with the present address of the web page."""
    page = settings.notify.page or _served_address(settings.core.home)
    return Writer(socket.gethostname(), page.rstrip("/"))


def _served_address(home: Path) -> str:
    """Return the address of an API that runs in the same home. Empty: there is none."""
    try:
        return (home / _ADDRESS_FILE).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


async def test_targets(urls: Mapping[str, str], writer: Writer) -> list[TestedTarget]:
    """Send a test to each of these targets, and return the outcomes in the order of the targets.

    Args:
        urls: The URLs by the names of their targets.
    Raises:
        OSError: No process can be started.
    """
    names = list(urls)
    message = writer.write_test()
    errors: dict[int, str | None] = {}

    async def record_error(id_: int, error: str | None) -> None:
        errors[id_] = error

    messages = {name: [(number, message)] for number, name in enumerate(names)}
    await send_messages(urls, messages, record_error, deadline=_DEADLINE)
    return [TestedTarget(name, errors[number]) for number, name in enumerate(names)]
