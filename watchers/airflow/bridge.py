"""The parts of Airflow that we use.

Airflow is imported only when a trigger needs it, because the import takes seconds and creates a home directory.

Airflow's `reject_shared_stream_event` finds the event to reject through two private names, which this module uses too.
A release of Airflow without these names is refused. Otherwise rejections would silently have no effect.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from triggerer.abc import reject_shared_stream_event
from triggerer.errors import PluginError

_PROVIDERS = "apache_airflow_provider"
_TRIED = "3.3.2"


class Bridge:
    """The classes of the installed Airflow."""

    def __init__(self) -> None:
        try:
            streams = importlib.import_module("airflow.triggers.shared_stream")
            base = importlib.import_module("airflow.triggers.base")
        except ImportError as error:
            raise PluginError(
                f"Airflow cannot be imported: {error}",
                hint=f"install apache-airflow=={_TRIED} and the provider package in this environment",
            ) from error
        try:
            self.AckTimeout = streams.AckTimeout
            self.AdvanceItem = streams.AdvanceItem
            self.AdvanceOutcome = streams.AdvanceOutcome
            self.BaseEventTrigger = base.BaseEventTrigger
            self._reject_context = streams._reject_context  # noqa: SLF001
            self._make_reject_context = streams._RejectContext  # noqa: SLF001
        except AttributeError as error:
            raise PluginError(
                f"this release of Airflow is not known here: {error}",
                hint=f"{_TRIED} is the release that was tried",
            ) from error

    def is_acknowledged(self, kind: type[Any]) -> bool:
        """Return whether the class has ack mode.

        As in Airflow, a class has ack mode if it overrides `create_shared_stream_producer`.
        """
        default = self.BaseEventTrigger.create_shared_stream_producer.__func__
        made_by: Any = getattr(kind, "create_shared_stream_producer")  # noqa: B009  (mypy: type has no such attribute)
        return getattr(made_by, "__func__", made_by) is not default

    def open_rejections(self) -> None:
        """Let Airflow's `reject_shared_stream_event` work in the current asyncio task, which drives a filter.

        The function then rejects the event that this filter pulled last.
        """
        context = self._make_reject_context(group=_Rejections(), trigger_id=0, event_id=0)
        self._reject_context.set(context)


class _Rejections:
    """Stands in for Airflow's stream group, and passes a rejection on to this runtime."""

    def _reject_pending_event(self, *, trigger_id: int, event_id: int) -> None:
        reject_shared_stream_event()


@cache
def bridge() -> Bridge:
    """Import Airflow, and let its hooks find the connections of our configuration.

    Raises:
        PluginError: Airflow is missing, or its release is not supported.
    """
    made = Bridge()
    importlib.import_module("watchers.airflow.connections").install()
    return made


def load_class(classpath: str) -> type[Any]:
    """Return a trigger class of an installed provider package. Classes of other packages are not imported.

    Raises:
        PluginError: The path is in no provider package, or is no event trigger.
    """
    module, _, name = classpath.rpartition(".")
    if not any(module == one or module.startswith(f"{one}.") for one in _provider_packages()):
        raise PluginError(
            f"{classpath} may not be loaded: it is in no installed provider package of Airflow",
            hint="for a class of your own, subclass AirflowEventTrigger in the DAGs folder and set `wraps`",
        )
    airflow = bridge()
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{classpath} cannot be loaded: {error}") from error
    return check_class(airflow, found)


def check_class(airflow: Bridge, found: object) -> type[Any]:
    """Return `found` if it is an Airflow event trigger.

    Raises:
        PluginError: `found` is no event trigger of Airflow.
    """
    if not isinstance(found, type) or not issubclass(found, airflow.BaseEventTrigger):
        raise PluginError(f"{found!r} is not a BaseEventTrigger of Airflow")
    return found


def _provider_packages() -> frozenset[str]:
    return frozenset(
        # The entry point `some.provider.get_provider_info:get_provider_info` is for the package `some.provider`.
        point.module.rpartition(".")[0] or point.module
        for point in entry_points(group=_PROVIDERS)
    )
