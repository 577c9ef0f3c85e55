"""Checks URLs of targets, or sends messages: `python -m triggerer.notifications.child`.

The service uses a process for two reasons:

- The service can kill the process at a deadline.
- Only the process imports Apprise, which takes a second and 60 MB.

Each target has a thread, so that a slow target does not delay the others.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from triggerer.domain.notifications import NotificationText
from triggerer.notifications.apprise_library import is_understood, send
from triggerer.processes.ipc import ChildChannel, connect_to_parent


def main() -> None:
    """Do what the parent orders, reply, and end. If the parent dies, the kernel kills this process."""
    channel = connect_to_parent()
    order = channel.receive()
    if order["type"] == "check":
        refused = [name for name, url in order["urls"].items() if not is_understood(url)]
        channel.send({"type": "end", "refused": refused})
    else:
        _send_all(channel, order["targets"])
        channel.send({"type": "end"})


def _send_all(channel: ChildChannel, targets: Sequence[dict[str, Any]]) -> None:
    turn = threading.Lock()

    def send_to(target: dict[str, Any]) -> None:
        for one in target["messages"]:
            error = send(target["url"], NotificationText(**one["message"]))
            with turn:
                channel.send({"type": "outcome", "id": one["id"], "error": error})
            if error is not None:
                # The target may be down. The parent decides when to try the other messages.
                return

    threads = [threading.Thread(target=send_to, args=(one,), daemon=True) for one in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
