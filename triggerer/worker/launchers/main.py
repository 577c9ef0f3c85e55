"""A process that stops launches of ended runs: `python -m triggerer.worker.launchers.main`.

The executor starts this process, because the clients of clusters block, and import PySpark. The process receives the
settings and the launches, sends a `launch` frame with the new state of each launch, and ends.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from triggerer.domain.launches import FormerLaunch
from triggerer.processes.ipc import connect_to_parent
from triggerer.processes.priority import give_way
from triggerer.worker.launchers.former_attempts import FormerAttempts, StillUnknown
from triggerer.worker.launchers.registry import launcher_named
from triggerer.worker.logs.writing import set_up_logging
from triggerer.worker.protocol import message

_PATIENCE = timedelta(seconds=5)
_NICENESS = 5


def main() -> None:
    """End the launches that the parent sends, one after the other."""
    from triggerer.config import SparkSettings

    channel = connect_to_parent()
    order = channel.receive()
    give_way(_NICENESS)
    set_up_logging()
    settings = SparkSettings.from_json(order["spark"])
    former = FormerAttempts(
        lambda name: launcher_named(name, settings),
        on_launch=lambda launch: channel.send(message("launch", launch=launch)),
        on_wait=lambda wait: None,
        patience=_PATIENCE,
    )
    for launch in map(FormerLaunch.from_json, order["launches"]):
        # `end_all` has already reported the launch as unknown.
        with suppress(StillUnknown):
            former.end_all([launch])


if __name__ == "__main__":
    main()
