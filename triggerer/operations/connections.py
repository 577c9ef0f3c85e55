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

    The children do not inherit environment variables that only the service needs.
    """
    install_connections(settings.get_connection)
    withhold_from_children(settings.service_variables)
    if settings.file is not None:
        # Child processes do not get the option --config. Their `get_connection` finds the file through this variable.
        os.environ[CONFIG_VARIABLE] = str(settings.file)
