"""Settings, read once at start into frozen dataclasses.

The first of these that has a value wins:

1. A command's own options.
2. The environment: `TRIGGERER__SECTION__KEY`.
3. The TOML file: `--config`, else `$TRIGGERER_CONFIG`, else `triggerer.toml` in the working directory.
4. The default.

Durations are in seconds, except in `[retention]`. pydantic-settings is not used, because it can neither say where a
value came from nor suggest a known key for a misspelled one.
"""

from triggerer.config.loading import load_connections, load_settings
from triggerer.config.sections import SECTIONS, CoreSettings, SparkSettings, written_age
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
    "written_age",
]
