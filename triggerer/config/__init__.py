"""Settings, read once at start into frozen dataclasses; nobody else reads the environment.

Precedence, highest first: a command's own options, the environment (`TRIGGERER__SECTION__KEY`), the
TOML file (`--config`, else `$TRIGGERER_CONFIG`, else `triggerer.toml` in the working directory), the
default. Durations are seconds. pydantic checks the values; the merging is done here, since
pydantic-settings cannot say where a value came from, nor name the nearest key for an unknown one.
"""

from triggerer.config.loading import load_connections, load_settings
from triggerer.config.sections import SECTIONS, CoreSettings, SparkSettings
from triggerer.config.settings import Settings
from triggerer.config.sources import CONFIG_VARIABLE, RawValue

__all__ = [
    "CONFIG_VARIABLE",
    "SECTIONS",
    "CoreSettings",
    "RawValue",
    "Settings",
    "SparkSettings",
    "load_connections",
    "load_settings",
]
