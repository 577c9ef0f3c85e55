"""DAGs as their authors write them. A DAG is checked while its file is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self, TypeAlias

from triggerer.domain.assets import checked_json
from triggerer.domain.authoring.airflow_names import argument_hint
from triggerer.domain.authoring.arguments import Arguments
from triggerer.domain.authoring.source_locations import importing_location
from triggerer.domain.authoring.spark_values import checked_conf, checked_packages
from triggerer.domain.instants import readable
from triggerer.domain.runs import RunState
from triggerer.domain.schedules import OnPartitions, Schedule, schedule_of, schedule_to_json
from triggerer.domain.tasks import OPTION_NAMES, Task, TaskOptions
from triggerer.domain.timetables.delta.durations import LONGEST, from_seconds
from triggerer.errors import DagError

_ID = re.compile(r"[\w.\-]+")
MAX_ID_LENGTH: Final = 250
Callback: TypeAlias = Callable[[Mapping[str, Any]], object]
_MAX_INTEGER: Final = 2**31 - 1
"""The largest integer in a column of the database."""

_current: ContextVar[DAG | None] = ContextVar("triggerer_current_dag", default=None)
_entered: ContextVar[list[DAG] | None] = ContextVar("triggerer_entered_dags", default=None)


def current_dag() -> DAG | None:
    """Return the DAG of the innermost `with` block around the call, if any."""
    return _current.get()


@contextmanager
def collect_dags() -> Iterator[list[DAG]]:
    """Yield a list that collects each DAG whose `with` block ends inside this context."""
    collected: list[DAG] = []
    token = _entered.set(collected)
    try:
        yield collected
    finally:
        _entered.reset(token)


class DAG:
    """A set of tasks, and the schedule of its runs.

    Args:
        dag_id: Letters, digits, `_`, `.` and `-`; unique among all files.
        schedule: For assets: an asset, an alias, an expression (`a & b`, `a | b`), or a list, which means `a & b & …`.
            For times: a cron expression or preset, a `timedelta` or a timetable. For both: `AssetOrTimeSchedule` or
            `AssetAndTimeSchedule`. None: all runs are triggered manually.
        max_active_runs: While this number of runs is queued or running, the scheduler creates no further run. Events
            wait.
        params: JSON values that each run receives. A manual run can replace them.
        default_args: Options of `@task` for all tasks that do not set them.
        is_paused_upon_creation: True if a new DAG is paused until a user unpauses it.
        events_per_run: The most events of each asset in one run; None: a run takes all queued events.
        on_success_callback, on_failure_callback: Functions that a worker calls with a mapping after a run has succeeded
            or failed. Errors that they raise are logged.
        start_date, end_date: The scheduler creates runs between these dates, both included; None: no limit. For a
            timetable of data intervals, the start of the interval counts. A cron expression uses the zone of
            `start_date`. Dates without a zone are UTC. An `end_date` before `start_date` is an error.
        catchup: True to create all runs that a timetable missed after `start_date` or during a pause, in order. False
            to create at most the last missed run.
        min_run_gap: The least time between two runs that the scheduler creates. Events that arrive in the gap go into
            the next run.
        quiet_period: Queued events start a run only once no further event has arrived for this time.
        depends_on_past: True to create a run only when the previous run has succeeded.
        priority: Queued runs with a higher priority are executed first.
        max_parallel_tasks: The most tasks of one run that are executed at once. A task still waits for its upstream
            tasks.
        spark_conf: Spark's settings for the runs. They win over `[spark] conf`. A setting that takes effect only
            in a new JVM gives each run an application of its own.
        spark_packages: Maven coordinates for the runs. With packages, each run has an application of its own.
    Raises:
        DagError: An argument is invalid.
    """

    def __init__(
        self,
        dag_id: str,
        *,
        schedule: Any = None,
        start_date: datetime | None = None,
        end_date: datetime | None = None,
        catchup: bool = False,
        max_active_runs: int = 16,
        description: str | None = None,
        tags: Iterable[str] | None = (),
        params: Mapping[str, Any] | None = None,
        default_args: Mapping[str, Any] | None = None,
        is_paused_upon_creation: bool = False,
        events_per_run: int | None = None,
        min_run_gap: timedelta | None = None,
        quiet_period: timedelta | None = None,
        on_success_callback: Callback | Iterable[Callback] | None = None,
        on_failure_callback: Callback | Iterable[Callback] | None = None,
        depends_on_past: bool = False,
        priority: int = 0,
        max_parallel_tasks: int = 1,
        spark_conf: Mapping[str, Any] = MappingProxyType({}),
        spark_packages: Sequence[str] = (),
    ) -> None:
        self.dag_id = _checked_id(dag_id, "a DAG's id")
        self.start_date = self._checked_date("start_date", start_date)
        self.end_date = self._checked_date("end_date", end_date)
        self._check_order_of_dates()
        self.schedule = self._checked_schedule(schedule)
        self.catchup = self._checked_switch("catchup", catchup)
        self.min_run_gap = self._checked_duration("min_run_gap", min_run_gap)
        self.quiet_period = self._checked_duration("quiet_period", quiet_period)
        self.depends_on_past = self._checked_switch("depends_on_past", depends_on_past)
        if type(priority) is not int or abs(priority) > _MAX_INTEGER:
            raise DagError(
                f"{self!r}: priority must be a whole number from -{_MAX_INTEGER} to {_MAX_INTEGER}, "
                f"not {priority!r}"
            )
        self.priority = priority
        self.max_active_runs = self._at_least_one("max_active_runs", max_active_runs)
        self.max_parallel_tasks = self._at_least_one("max_parallel_tasks", max_parallel_tasks)
        self.spark_conf = checked_conf(spark_conf, f"{self!r}: spark_conf")
        self.spark_packages = checked_packages(spark_packages, f"{self!r}: spark_packages")
        self.events_per_run = (
            None if events_per_run is None else self._at_least_one("events_per_run", events_per_run)
        )
        if self.events_per_run is not None and isinstance(self.schedule, OnPartitions):
            raise DagError(
                f"{self!r}: events_per_run does not go with partitions",
                hint="a run for a partition key takes all events of the key; for one run per event, give each event "
                "a key of its own, or use a schedule of assets without partitions",
            )
        if description is not None and not isinstance(description, str):
            raise DagError(f"{self!r}: description must be a string, not {description!r}")
        self.description = description
        self.tags = self._checked_tags(tags)
        self.params = checked_json(params or {}, self, "params")
        self.is_paused_upon_creation = self._checked_switch(
            "is_paused_upon_creation", is_paused_upon_creation
        )
        self.on_success_callbacks = self._checked_callbacks(
            "on_success_callback", on_success_callback
        )
        self.on_failure_callbacks = self._checked_callbacks(
            "on_failure_callback", on_failure_callback
        )
        self.defined_at = importing_location()
        self._defaults = self._checked_defaults(default_args or {})
        self._tasks: dict[str, Task] = {}
        self._tokens: list[Token[DAG | None]] = []

    def __enter__(self) -> Self:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _current.reset(self._tokens.pop())
        collected = _entered.get()
        if error is None and collected is not None and self not in collected:
            collected.append(self)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """All tasks by id, in the order of their creation."""
        return MappingProxyType(self._tasks)

    def tasks_in_order(self) -> tuple[Task, ...]:
        """Return all tasks: each after the tasks it waits for, otherwise in the order of creation."""
        ordered: dict[Task, None] = {}

        # Not recursive: a long chain of tasks would exceed the stack.
        for task in self._tasks.values():
            stack = [task]
            while stack:
                missing = [before for before in stack[-1].upstream if before not in ordered]
                if missing:
                    stack.append(missing[0])
                else:
                    ordered.setdefault(stack.pop())
        return tuple(ordered)

    def schedule_to_json(self) -> dict[str, Any] | None:
        """Return the schedule as `triggerer.domain.schedules` writes it; None: only manual runs."""
        return None if self.schedule is None else schedule_to_json(self.schedule)

    def add_task(
        self,
        name: str,
        function: Callable[..., Any],
        options: TaskOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        names_assets: bool = False,
        internal: Sequence[str] = (),
    ) -> Task:
        """Add a task for one call of a `@task` function.

        If the name is taken, `__1`, `__2`, … is appended.

        Args:
            names_assets, internal: See `Arguments.bind`.
        Raises:
            DagError: The arguments do not fit the function.
        """
        task_id, count = _checked_id(name, f"{self!r}: a task's id"), 0
        while task_id in self._tasks:
            count += 1
            task_id = f"{name}__{count}"
        owner = f"task {task_id!r} of DAG {self.dag_id!r}"
        arguments = Arguments.bind(
            function, args, kwargs, owner=owner, names_assets=names_assets, internal=internal
        )
        task = Task(self, task_id, function, arguments, options.over(self._defaults))
        # Check only the call's own `templated`: names in `default_args` need not be arguments of each function.
        for name in options.templated or ():
            if name not in arguments.bound.signature.parameters:
                raise DagError(
                    f"{owner}: templated names {name!r}, which is no argument of the function"
                )
        for result in arguments.results():
            task.follow(result.task)
        self._tasks[task_id] = task
        return task

    def _checked_schedule(self, value: object) -> Schedule | None:
        zone = None if self.start_date is None else self.start_date.tzinfo
        try:
            return schedule_of(value, timezone=zone or UTC)
        except DagError as error:
            raise DagError(f"{self!r}: {error.message}", hint=error.hint) from error

    def _checked_date(self, name: str, value: object) -> datetime | None:
        """Return the instant. A datetime without a zone is UTC, as in Airflow."""
        if value is None:
            return None
        if not isinstance(value, datetime):
            raise DagError(f"{self!r}: {name} must be a datetime, not {value!r}")
        if value.utcoffset() is None:
            return value.replace(tzinfo=UTC)
        try:
            value.astimezone(UTC)
        except OverflowError as error:
            raise DagError(
                f"{self!r}: {name} lies outside the years 1 to 9999 in UTC: {value.isoformat()}"
            ) from error
        return value

    def _check_order_of_dates(self) -> None:
        """Refuse an end before the start. Airflow accepts such dates and never makes a run."""
        start, end = self.start_date, self.end_date
        if start is not None and end is not None and end < start:
            raise DagError(
                f"{self!r}: end_date {readable(end)} lies before start_date {readable(start)}",
                hint="the DAG would never run; for runs by hand only, write schedule=None",
            )

    def _checked_duration(self, name: str, value: object) -> timedelta | None:
        # A bare number is seconds, as for tasks.
        value = from_seconds(value)
        if value is None:
            return None
        if not isinstance(value, timedelta) or value <= timedelta(0):
            raise DagError(f"{self!r}: {name} must be a timedelta of more than 0, not {value!r}")
        if value > LONGEST:
            raise DagError(f"{self!r}: {name} must be at most {LONGEST.days:,} days, not {value!r}")
        return value

    def _checked_switch(self, name: str, value: object) -> bool:
        # In Airflow, None leaves the decision to the configuration. Here, None is False.
        if value is not None and not isinstance(value, bool):
            raise DagError(f"{self!r}: {name} must be True or False, not {value!r}")
        return bool(value)

    def callbacks_after(self, state: RunState) -> tuple[Callback, ...]:
        """Return the callbacks for a run that ended in this state, in order."""
        match state:
            case RunState.SUCCESS:
                return self.on_success_callbacks
            case RunState.FAILED:
                return self.on_failure_callbacks
            case _:
                return ()

    def _checked_callbacks(self, name: str, given: Any) -> tuple[Callback, ...]:
        many = tuple(given) if isinstance(given, list | tuple) else (given,) if given else ()
        for one in many:
            if not callable(one) or inspect.iscoroutinefunction(one):
                raise DagError(f"{self!r}: {name} must be a plain function, not {one!r}")
        return many

    def _at_least_one(self, name: str, value: object) -> int:
        if type(value) is not int or not 1 <= value <= _MAX_INTEGER:
            raise DagError(
                f"{self!r}: {name} must be a whole number from 1 to {_MAX_INTEGER}, not {value!r}"
            )
        return value

    def _checked_tags(self, tags: object) -> tuple[str, ...]:
        given = () if tags is None else (tags,) if isinstance(tags, str) else tags
        if not isinstance(given, Iterable):
            raise DagError(f"{self!r}: tags are strings, not {tags!r}")
        taken = tuple(given)
        for tag in taken:
            if not str(tag).strip() or type(tag) is not str:
                raise DagError(f"{self!r}: a tag must be a string, not {tag!r}")
        return tuple(dict.fromkeys(taken))

    def _checked_defaults(self, given: object) -> TaskOptions:
        if not isinstance(given, Mapping):
            raise DagError(
                f"{self!r}: default_args are options of its tasks by name, not {given!r}"
            )
        allowed = OPTION_NAMES - {"task_id"}
        if unknown := sorted(str(name) for name in set(given) - allowed):
            raise DagError(
                f"{self!r}: default_args has {unknown[0]!r}, which is no option of a task",
                hint=argument_hint(unknown[0], allowed),
            )
        return TaskOptions.checked(f"{self!r}: default_args", **given)

    def __repr__(self) -> str:
        return f"<DAG {self.dag_id}>"


def _checked_id(value: object, what: str) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value) or len(value) > MAX_ID_LENGTH:
        raise DagError(
            f"{what} must be at most {MAX_ID_LENGTH} letters, digits, '_', '.' and '-', "
            f"not {value!r}"
        )
    if value in {".", ".."}:
        # No URL could name the object, because HTTP clients remove `.` and `..` from a path.
        raise DagError(f"{what} cannot be {value!r}")
    return value
