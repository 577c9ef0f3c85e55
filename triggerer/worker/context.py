"""What a run fills in for the arguments that a task names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final

from triggerer.domain.assets import Asset
from triggerer.domain.attempts import RunDetails, RunOrder
from triggerer.domain.authoring.arguments import CONTEXT_ARGUMENTS
from triggerer.domain.conditions import assets_of
from triggerer.domain.dags import DAG
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import condition_of
from triggerer.domain.tasks import Task
from triggerer.worker.events import (
    InletEvents,
    QueryEvents,
    TriggeringAssetEvents,
    find_asset,
)
from triggerer.worker.outlets import OutletEvents
from triggerer.worker.templating import date_names, render

logger = logging.getLogger("triggerer.run")

_IN_TEMPLATES: Final = tuple(
    name for name in CONTEXT_ARGUMENTS if name not in ("spark", "outlet_events", "log")
)


@dataclass(frozen=True, slots=True)
class DagRun(RunDetails):
    """The run that a task belongs to."""

    @property
    def conf(self) -> Mapping[str, Any]:
        """The same as `params`, under Airflow's name."""
        return self.params

    def mark(self, name: str) -> float:
        """Note in the run's log how many seconds after it was queued this line was reached."""
        seconds = (datetime.now(UTC) - self.queued_at).total_seconds()
        logger.info("mark %s %.6f", name, seconds)
        return seconds


class RunContext:
    """Builds the arguments of each task of one attempt; what tasks share is made once.

    Args:
        spark: Gives a live Spark session; called for tasks that name `spark`, never otherwise.
    """

    def __init__(
        self, order: RunOrder, dag: DAG, query: QueryEvents, spark: Callable[[], Any]
    ) -> None:
        self._query = query
        self._spark = spark
        condition = condition_of(dag.schedule)
        scheduled: tuple[Asset, ...] = () if condition is None else assets_of(condition)
        self._triggering = TriggeringAssetEvents(query, scheduled)
        details = {field.name: getattr(order, field.name) for field in fields(DagRun)}
        self.dag_run = DagRun(**{**details, "params": {**dag.params, **order.params}})

    def arguments(self, task: Task, outlet_events: OutletEvents) -> dict[str, Any]:
        """The arguments that this task names, for one try.

        Raises:
            SubmitFailed: It names `spark`, and no session could be had.
            RunFailed: An argument is named like an asset that there is not.
        """
        made = {name: self._make(name, task, outlet_events) for name in task.context_names}
        named = {name: find_asset(self._query, name) for name in task.arguments.inlets}
        return made | named

    def callback_context(self, state: RunState, error: str | None) -> dict[str, Any]:
        """Return what the DAG's callbacks are given: the run, and how it ended."""
        run = self.dag_run
        return {
            "dag_run": run,
            "run_id": run.run_id,
            "params": run.params,
            "logical_date": run.logical_date,
            "data_interval_start": run.data_interval_start,
            "data_interval_end": run.data_interval_end,
            "triggering_asset_events": self._triggering,
            "state": str(state),
            "error": error,
            "log": logging.getLogger("callback"),
        }

    def render(self, task: Task, name: str, value: Any, arguments: Mapping[str, Any]) -> Any:
        """Return what an argument of the task's call becomes that is `templated`.

        Args:
            arguments: Those of this try.
        Raises:
            TemplateError: It cannot be rendered.
        """
        names = {
            one: arguments[one] if one in arguments else self._make(one, task, OutletEvents(()))
            for one in _IN_TEMPLATES
        }
        names |= date_names(self.dag_run.logical_date)
        return render(value, names, task.argument(name))

    def _make(self, name: str, task: Task, outlet_events: OutletEvents) -> Any:
        match name:
            case "spark":
                return self._spark()
            case "triggering_asset_events":
                return self._triggering
            case "outlet_events":
                return outlet_events
            case "inlet_events":
                # Made anew for each try, which sees what was recorded before it.
                return InletEvents(self._query, task.inlets)
            case "dag_run":
                return self.dag_run
            case "log":
                return logging.getLogger(f"task.{task.task_id}")
            case _:
                # run_id, logical_date, data_interval_start, data_interval_end and params
                return getattr(self.dag_run, name)
