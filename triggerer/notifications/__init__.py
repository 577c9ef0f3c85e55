"""Messages to people: their texts, their sending through Apprise, and `notify`, a callback for DAG files."""

from triggerer.notifications.callback import notify

__all__ = ["notify"]
