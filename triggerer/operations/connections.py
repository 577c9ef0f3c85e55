"""The connections of the configuration, for all who ask for them by name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from triggerer.abc import install_connections
from triggerer.config import CONFIG_VARIABLE
from triggerer.processes.child_process import withhold_from_children

if TYPE_CHECKING:
    from triggerer.config import Settings


def share_connections(settings: Settings) -> None:
    """Have `get_connection` answer from these settings, in this process and in the children that it starts.

    What only the service needs is kept from the children.
    """
    install_connections(settings.get_connection)
    withhold_from_children(settings.service_variables)
    if settings.file is not None:
        # Children have no --config; their `get_connection` reads the same file.
        os.environ[CONFIG_VARIABLE] = str(settings.file)
