"""The launchers by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.launches import CONNECT
from triggerer.errors import ConfigurationError
from triggerer.worker.launchers.protocol import Launcher

if TYPE_CHECKING:
    from triggerer.config import SparkSettings

_LAUNCHERS: Final[Mapping[str, str]] = {
    CONNECT: "triggerer.worker.launchers.connect:ConnectLauncher",
    "kubernetes": "triggerer.worker.launchers.kubernetes:KubernetesLauncher",
    "standalone": "triggerer.worker.launchers.standalone:StandaloneLauncher",
    "yarn": "triggerer.worker.launchers.yarn:YarnLauncher",
}
"""Launcher classes by name. A launcher is made from the settings of `[spark]` when it is needed."""


def launcher_named(name: str, settings: SparkSettings) -> Launcher:
    """Return the launcher with this name.

    Raises:
        ConfigurationError: No launcher has this name, or the settings do not name its cluster.
    """
    if name not in _LAUNCHERS:
        raise ConfigurationError(
            f"there is no launcher {name!r}", hint=f"known launchers: {', '.join(_LAUNCHERS)}"
        )
    module, _, made = _LAUNCHERS[name].partition(":")
    kind: Any = getattr(importlib.import_module(module), made)
    launcher: Launcher = kind(settings)
    return launcher
