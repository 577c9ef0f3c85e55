"""Makes the configured connections available by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from triggerer.abc import install_connections
from triggerer.config import CONFIG_VARIABLE
from triggerer.processes.child_process import withhold_from_children

if TYPE_CHECKING:
    from triggerer.config import Settings


def share_connections(settings: Settings) -> None:
    """Make `get_connection` return the connections of these settings, in this process and its child processes.

    Variables that only the service needs are withheld from the children.
    """
    install_connections(settings.get_connection)
    withhold_from_children(settings.service_variables)
    if settings.file is not None:
        # Children have no --config, so their `get_connection` finds this file through the variable.
        os.environ[CONFIG_VARIABLE] = str(settings.file)
