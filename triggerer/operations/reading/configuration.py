"""The settings in force and their origins, with secrets hidden."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from triggerer.config import SECTIONS, Settings, written_age
from triggerer.observability.target_names import redact_setting

_AGES: Final = {("retention", key) for key in ("events", "runs", "logs", "audit", "parked")}
"""The durations that are shown as the configuration file writes them: in days or hours, or as "never"."""


@dataclass(frozen=True, slots=True)
class SettingView:
    """One setting."""

    section: str
    key: str
    value: Any
    source: str
    """`FILE:LINE`, the name of a variable or an option, or `default`."""
    unit: str | None = None
    """"seconds" if the value is a duration; None: the value has no unit, or its key names the unit."""


def list_settings(settings: Settings) -> list[SettingView]:
    """Return every setting in the order of the documentation, then pools and connections."""
    values: dict[tuple[str, ...], Any] = {
        (section, key): written_age(value) if (section, key) in _AGES else value
        for section in SECTIONS
        for key, value in asdict(getattr(settings, section)).items()
    }
    values |= {("pools", name): slots for name, slots in sorted(settings.pools.items())}
    for name, connection in sorted(settings.connections.items()):
        values |= {("connections", name, key): item for key, item in connection.items()}
    return [
        SettingView(
            section=".".join(where[:-1]),
            key=where[-1],
            value=redact_setting(where[0], where[-1], _plain(value)),
            source=settings.sources[where],
            unit="seconds" if isinstance(value, timedelta) else None,
        )
        for where, value in values.items()
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    return str(value) if isinstance(value, Path) else value
