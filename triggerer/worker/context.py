"""The arguments that a run passes to its tasks and callbacks, such as `spark`, `dag_run` and `inlet_events`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from triggerer.domain.assets import Asset
from triggerer.domain.attempts import RunDetails, RunOrder
from triggerer.domain.authoring.arguments import CONTEXT_ARGUMENTS
from triggerer.domain.conditions import assets_of
from triggerer.domain.dags import DAG
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import condition_of
from triggerer.domain.tasks import Task
from triggerer.worker.events.mappings import (
    InletEvents,
    QueryEvents,
    TriggeringAssetEvents,
    find_asset,
)
from triggerer.worker.events.outlets import OutletEvents
from triggerer.worker.output import Output
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
        """`params`, under Airflow's name."""
        return self.params

    def mark(self, name: str) -> float:
        """Log and return the seconds from queuing the run to this call."""
        seconds = (datetime.now(UTC) - self.queued_at).total_seconds()
        logger.info("mark %s %.6f", name, seconds)
        return seconds


class RunContext:
    """Builds the arguments of each task in one attempt. Tasks share some arguments, such as `dag_run`.

    Args:
        spark: Returns a live Spark session. Called only for tasks that name `spark`.
        submit: Submits a Spark application. Its arguments are the id of the `SparkApplication` task, and the
            application.
    """

    def __init__(
        self,
        order: RunOrder,
        dag: DAG,
        query: QueryEvents,
        spark: Callable[[], Any],
        submit: Callable[..., None],
    ) -> None:
        self._order = order
        self._query = query
        self._spark = spark
        self._submit = submit
        condition = condition_of(dag.schedule)
        scheduled: tuple[Asset, ...] = () if condition is None else assets_of(condition)
        self._triggering = TriggeringAssetEvents(query, scheduled)
        details = {field.name: getattr(order, field.name) for field in fields(DagRun)}
        self.dag_run = DagRun(**{**details, "params": {**dag.params, **order.params}})

    def arguments(self, task: Task, outlet_events: OutletEvents) -> dict[str, Any]:
        """Return, by name, the arguments that the service supplies for one try of a task, such as `spark`.

        Raises:
            SubmitFailed: The task names `spark`, and no session could be opened.
            RunFailed: An argument has the name of an asset that does not exist.
        """
        made = {name: self._make(name, task, outlet_events) for name in task.context_names}
        named = {name: find_asset(self._query, name) for name in task.arguments.inlets}
        return made | named

    def callback_context(self, state: RunState, error: str | None) -> dict[str, Any]:
        """Return the mapping that the DAG's callbacks receive: the run, its final state and its error."""
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
        """Return the rendered value of a `templated` argument.

        Args:
            arguments: What the method `arguments` has returned for this try.
        Raises:
            TemplateError: The value cannot be rendered.
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
            case "output":
                # An `Output` numbers its calls for each target, and the number is part of an output's identity. Each
                # try gets a new `Output`, so that the numbers begin at 1 in each try.
                return Output(self._order.output_token(task.task_id), self._may_commit)
            case "triggering_asset_events":
                return self._triggering
            case "outlet_events":
                return outlet_events
            case "inlet_events":
                # Each try gets a new object, which also sees the events that were recorded during earlier tries.
                return InletEvents(self._query, task.inlets)
            case "dag_run":
                return self.dag_run
            case "submit":
                return partial(self._submit, task.task_id)
            case "log":
                return logging.getLogger(f"task.{task.task_id}")
            case _:
                # `run_id`, `params`, and the names of dates are attributes of `dag_run`.
                return getattr(self.dag_run, name)

    def _may_commit(self) -> bool:
        return bool(self._query("may_commit"))
