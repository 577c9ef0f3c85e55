"""Finds trigger classes, and identifies triggers and streams across processes."""

from triggerer.plugins.digests import canonical_kwargs, stream_digest, trigger_digest
from triggerer.plugins.folder import DagsFolder
from triggerer.plugins.loading import (
    Plugin,
    install_hint,
    list_plugins,
    load_trigger_class,
    plugin_modules,
)

__all__ = [
    "DagsFolder",
    "Plugin",
    "canonical_kwargs",
    "install_hint",
    "list_plugins",
    "load_trigger_class",
    "plugin_modules",
    "stream_digest",
    "trigger_digest",
]
