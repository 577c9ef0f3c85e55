"""The settings of all processes of the service, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.config import Settings
from triggerer.operations.reading.configuration import SettingView, list_settings
from triggerer.processes.instance_ids import this_process
from triggerer.store.streams.process_settings import (
    SettingsOfProcess,
    published_settings,
    save_settings,
)

_USERS: Final = {
    "triggerer": {"triggerer"},
    "scheduler": {"scheduler"},
    "dag_processor": {"dag-processor"},
    "executor": {"executor"},
    "spark": {"executor"},
    "pools": {"dag-processor", "executor"},
    "connections": {"triggerer", "dag-processor"},
    "api": {"api"},
    "notify": {"scheduler"},
    "retention": {"scheduler", "executor"},
    "logs": {"executor"},
}
"""By section, the parts of the service that use the section. All parts count as users of any other section."""


@dataclass(frozen=True, slots=True)
class OtherSetting:
    """The value of a setting in another process, if it differs from `ServiceSettingView.value`."""

    process: str
    """`<host>:<pid>`."""
    parts: list[str]
    """The parts of the service that run in this process."""
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class ServiceSettingView(SettingView):
    """One setting: its value in a process that uses the setting, and the processes with another value."""

    process: str = ""
    """`<host>:<pid>` of the process that has `value`."""
    others: list[OtherSetting] = field(default_factory=list)


async def publish_settings(session: AsyncSession, settings: Settings) -> None:
    """Store the settings of this process, without secrets, so that the API can show them."""
    await save_settings(session, this_process(), [asdict(one) for one in list_settings(settings)])


async def list_service_settings(
    session: AsyncSession, settings: Settings
) -> list[ServiceSettingView]:
    """Return the settings of all processes of the service.

    Args:
        settings: The settings of this process, which serves the API.
    """
    own = SettingsOfProcess(
        this_process(), frozenset({"api"}), [asdict(one) for one in list_settings(settings)]
    )
    others = [one for one in await published_settings(session) if one.process != own.process]
    return merged([own, *others])


def merged(processes: Sequence[SettingsOfProcess]) -> list[ServiceSettingView]:
    """Return each setting once: its value in one process that uses it, and the processes that have another value."""
    found: dict[tuple[str, str], list[tuple[SettingsOfProcess, dict[str, Any]]]] = {}
    for process in processes:
        for one in process.settings:
            found.setdefault((one["section"], one["key"]), []).append((process, one))
    return [_merged(section, key, has) for (section, key), has in found.items()]


def _merged(
    section: str, key: str, has: list[tuple[SettingsOfProcess, dict[str, Any]]]
) -> ServiceSettingView:
    kinds = _USERS.get(section.partition(".")[0])
    using = [(one, row) for one, row in has if kinds is None or one.kinds & kinds] or has
    (first, shown), *rest = using
    return ServiceSettingView(
        section,
        key,
        shown["value"],
        shown["source"],
        shown.get("unit"),
        first.process,
        [
            OtherSetting(one.process, sorted(one.kinds), row["value"], row["source"])
            for one, row in rest
            if row["value"] != shown["value"]
        ],
    )
