"""Tasks: calls of functions inside a DAG, with their options and their order."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from triggerer.domain.assets import Asset, AssetAlias, AssetRef
from triggerer.domain.authoring.airflow_names import argument_hint
from triggerer.domain.authoring.arguments import Arguments, Result
from triggerer.domain.authoring.source_locations import calling_location
from triggerer.domain.timetables.delta.durations import LONGEST, from_seconds
from triggerer.errors import DagError

if TYPE_CHECKING:
    from triggerer.domain.dags import DAG

_POOL = re.compile(r"[\w.\-]{1,100}")
MadeFunction: TypeAlias = "tuple[TaskFunction, DAG | None]"
_made: ContextVar[list[MadeFunction] | None] = ContextVar("triggerer_task_functions", default=None)
Ordered: TypeAlias = "Task | Result | list[Task | Result] | tuple[Task | Result, ...]"


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The options of `@task(...)` and of a DAG's `default_args`; None: not set."""

    task_id: str | None = None
    outlets: tuple[Asset | AssetAlias, ...] | None = None
    inlets: tuple[Asset | AssetAlias | AssetRef, ...] | None = None
    retries: int | None = None
    retry_delay: timedelta | None = None
    timeout: timedelta | None = None
    pool: str | None = None
    templated: tuple[str, ...] | None = None
    """The names of the call's arguments that Jinja renders."""

    @classmethod
    def checked(cls, owner: str, **given: Any) -> TaskOptions:
        """Return the options, checked.

        Raises:
            DagError: An option is invalid. The message names `owner` and the option.
        """
        for name in ("outlets", "inlets"):
            if given.get(name) is not None:
                given[name] = _assets(given[name], f"{owner}: {name}")
        retries = given.get("retries")
        if retries is not None and (type(retries) is not int or retries < 0):
            raise DagError(f"{owner}: retries must be a whole number from 0, not {retries!r}")
        for name in ("retry_delay", "timeout"):
            # A bare number is seconds, as in Airflow.
            value = from_seconds(given.get(name))
            if value is None:
                continue
            if not isinstance(value, timedelta) or value < timedelta(0):
                raise DagError(f"{owner}: {name} must be a timedelta from 0, not {value!r}")
            if value > LONGEST:
                raise DagError(
                    f"{owner}: {name} must be at most {LONGEST.days:,} days, not {value!r}"
                )
            given[name] = value
        if given.get("timeout") == timedelta(0):
            raise DagError(f"{owner}: a timeout of 0 would end the task before it starts")
        if given.get("templated") is not None:
            given["templated"] = _names(given["templated"], f"{owner}: templated")
        pool = given.get("pool")
        if pool is not None and (not isinstance(pool, str) or not _POOL.fullmatch(pool)):
            raise DagError(
                f"{owner}: a pool's name has at most 100 letters, digits, '_', '.' and '-', not {pool!r}"
            )
        return cls(**given)

    def over(self, defaults: TaskOptions) -> TaskOptions:
        """Return these options; `defaults` fill the options that are not set."""
        set_options = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}
        return replace(defaults, **set_options)


OPTION_NAMES = frozenset(field.name for field in fields(TaskOptions))


class Task:
    """One task of a DAG. As an argument of another task, it stands for its own return value.

    To create a task, call a `@task` function inside a DAG, not this class.
    """

    # Without this line, a `for` loop over a task would read `task[0]`, `task[1]` and so on for ever.
    __iter__ = None

    def __init__(
        self,
        dag: DAG,
        task_id: str,
        function: Callable[..., Any],
        arguments: Arguments,
        options: TaskOptions,
    ) -> None:
        self.dag = dag
        self.task_id = task_id
        self.function = function
        self.arguments = arguments
        self.outlets = options.outlets or ()
        named = tuple(AssetRef(name) for name in arguments.inlets)
        self.inlets: tuple[Asset | AssetAlias | AssetRef, ...] = (*(options.inlets or ()), *named)
        self.retries = options.retries or 0
        self.retry_delay = options.retry_delay or timedelta(0)
        self.timeout = options.timeout
        self.pool = options.pool
        self.templated = options.templated or ()
        self.defined_at = calling_location()
        self._upstream: dict[Task, None] = {}
        self._is_followed = False

    @property
    def upstream(self) -> tuple[Task, ...]:
        """The tasks that must succeed before this task starts."""
        return tuple(self._upstream)

    @property
    def context_names(self) -> frozenset[str]:
        """The parameters that a run fills in: names in `CONTEXT_ARGUMENTS`, and `submit` for a `SparkApplication`."""
        return self.arguments.from_context

    @property
    def needs_spark(self) -> bool:
        """True if the function has a parameter `spark` that the call does not fill."""
        return "spark" in self.context_names

    def call(
        self,
        *,
        context: Mapping[str, Any],
        results: Mapping[str, Any],
        render: Callable[[str, Any], Any] | None = None,
    ) -> Any:
        """Call the user's function and return its result, which is a generator if the function yields.

        Args:
            context: Values by name, at least for `context_names` and for the asset names in `arguments.inlets`.
            results: The return values of the upstream tasks, by task id.
            render: Receives the name and value of each `templated` argument, and returns the new value.
        """
        renderings = {} if render is None else {n: partial(render, n) for n in self.templated}
        return self.arguments.call(
            self.function, context=context, results=results, render=renderings
        )

    def argument(self, name: str) -> str:
        """Return what error messages call an argument: `argument 'x' of task 't' of DAG 'd'`."""
        return f"argument {name!r} of task {self.task_id!r} of DAG {self.dag.dag_id!r}"

    def follow(self, upstream: Task) -> None:
        """Make this task wait for `upstream`.

        Raises:
            DagError: The order would have a cycle, or `upstream` belongs to another DAG.
        """
        if upstream.dag is not self.dag:
            raise DagError(
                f"task {self.task_id!r} of DAG {self.dag.dag_id!r} cannot wait for task "
                f"{upstream.task_id!r} of DAG {upstream.dag.dag_id!r}",
                hint=f"let DAG {upstream.dag.dag_id!r} emit an asset, and schedule DAG {self.dag.dag_id!r} on it",
            )
        # Search for a cycle only if another task waits for this task already, or if this task would
        # wait for itself. Otherwise no cycle is possible.
        if (self._is_followed or upstream is self) and (path := _path(upstream, self)):
            names = " >> ".join(task.task_id for task in (*path, self))
            raise DagError(f"DAG {self.dag.dag_id!r}: its tasks wait for one another: {names}")
        self._upstream.setdefault(upstream)
        upstream._is_followed = True

    def __getitem__(self, key: Any) -> Result:
        return Result(self, (key,))

    def __rshift__(self, other: Ordered) -> Any:
        _order(self, other)
        return other

    def __lshift__(self, other: Ordered) -> Any:
        _order(other, self)
        return other

    # Python calls these methods for `[a, b] >> c` and `[a, b] << c`, because a list has no `>>` and `<<`.
    def __rrshift__(self, other: Ordered) -> Task:
        _order(other, self)
        return self

    def __rlshift__(self, other: Ordered) -> Task:
        _order(self, other)
        return self

    def __repr__(self) -> str:
        return f"<task {self.task_id} of DAG {self.dag.dag_id}>"


class SkipTask(Exception):
    """A task raises `SkipTask` to skip itself and all tasks that wait for it, directly or indirectly.

    A skipped task updates no outlet and is not retried. A run succeeds if all its tasks succeeded or were skipped.
    """

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason or "")
        self.reason = reason


@contextmanager
def collect_task_functions() -> Iterator[list[MadeFunction]]:
    """Yield a list that collects each function that `@task` decorates, with the DAG around it, if any."""
    collected: list[MadeFunction] = []
    token = _made.set(collected)
    try:
        yield collected
    finally:
        _made.reset(token)


class TaskFunction:
    """The result of `@task`. Calling it inside a DAG adds a task and returns the task."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: TaskOptions,
        *,
        origin: TaskFunction | None = None,
    ) -> None:
        if not callable(function):
            raise DagError(f"@task takes a function, not {function!r}")
        name = getattr(function, "__name__", repr(function))
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise DagError(f"task {name!r} is async", hint="a task is a plain function")
        self.function = function
        self.name: str = options.task_id or name.strip("<>")  # "<lambda>" is no id
        self.options = options
        self.defined_at = calling_location()
        self.is_called = False
        """True once a call has added a task, with these options or with options from `override`."""
        self._origin = origin
        functools.update_wrapper(self, function)
        if origin is None and (collected := _made.get()) is not None:
            from triggerer.domain.dags import current_dag

            # The DAG must not be an attribute, because pickling the function would pickle the whole DAG.
            collected.append((self, current_dag()))

    def __call__(self, *args: Any, **kwargs: Any) -> Task:
        """Add a task to the DAG of the `with` block.

        Raises:
            DagError: The call is outside a `with DAG(...)` block, or the arguments do not fit the function.
        """
        from triggerer.domain.dags import current_dag

        dag = current_dag()
        if dag is None:
            raise DagError(
                f"task {self.name!r} is called outside a DAG",
                hint=f"call it inside `with DAG(...)`; {self.name}.function(...) runs it at once",
            )
        (self._origin or self).is_called = True
        return dag.add_task(self.name, self.function, self.options, args, kwargs)

    def override(self, **options: Any) -> TaskFunction:
        """Return this function with other options, for one call."""
        _refuse_unknown(options, f"task {self.name!r}")
        set_options = TaskOptions.checked(f"task {self.name!r}", **options)
        options_of_all = set_options.over(self.options)
        return TaskFunction(self.function, options_of_all, origin=self._origin or self)


@overload
def task(function: Callable[..., Any], /) -> TaskFunction: ...
@overload
def task(
    *,
    task_id: str | None = ...,
    outlets: Asset | AssetAlias | Iterable[Asset | AssetAlias] | None = ...,
    inlets: Asset | AssetAlias | Iterable[Asset | AssetAlias] | None = ...,
    retries: int | None = ...,
    retry_delay: timedelta | float | None = ...,
    timeout: timedelta | float | None = ...,
    pool: str | None = ...,
    templated: Iterable[str] | str | None = ...,
) -> Callable[[Callable[..., Any]], TaskFunction]: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn a function into a `TaskFunction`, which adds a task when it is called inside a DAG.

    Args:
        function: The worker calls it at each try, with the arguments of the task's call and the `CONTEXT_ARGUMENTS`
            that it names. An argument that is a task is replaced by the task's return value.
        options: See `TaskOptions`. `timeout` applies to each try. Bare numbers are seconds.
    Raises:
        DagError: An option is invalid.
    """
    _refuse_unknown(options, "@task")
    name = getattr(function, "__name__", None)
    checked = TaskOptions.checked(f"task {name!r}" if name else "@task", **options)
    if function is not None:
        return TaskFunction(function, checked)
    return lambda decorated: TaskFunction(decorated, checked)


def _refuse_unknown(options: Mapping[str, Any], owner: str) -> None:
    if unknown := sorted(set(options) - OPTION_NAMES):
        raise DagError(
            f"{owner} does not know the option {unknown[0]!r}",
            hint=argument_hint(unknown[0], OPTION_NAMES),
        )


def _assets(value: Any, what: str) -> tuple[Asset | AssetAlias, ...]:
    many = (value,) if isinstance(value, Asset | AssetAlias) else value
    if not isinstance(many, list | tuple):
        raise DagError(f"{what} must be assets or aliases, not {value!r}")
    for one in many:
        if not isinstance(one, Asset | AssetAlias):
            raise DagError(f"{what} must be assets or aliases, not {one!r}")
    return tuple(dict.fromkeys(many))


def _names(value: Any, what: str) -> tuple[str, ...]:
    many = (value,) if isinstance(value, str) else value
    if not isinstance(many, list | tuple) or not all(isinstance(one, str) for one in many):
        raise DagError(f"{what} must be names of arguments, not {value!r}")
    return tuple(dict.fromkeys(many))


def _order(first: Ordered, then: Ordered) -> None:
    for before in _tasks(first):
        for after in _tasks(then):
            after.follow(before)


def _tasks(value: Ordered) -> list[Task]:
    many = value if isinstance(value, list | tuple) else [value]
    tasks = [one.task if isinstance(one, Result) else one for one in many]
    for one in tasks:
        if not isinstance(one, Task):
            raise DagError(f">> and << order tasks, not {one!r}")
    return tasks


def _path(start: Task, target: Task) -> list[Task] | None:
    """Return the path target, …, start if `start` waits for `target`, directly or indirectly; otherwise None."""
    following: dict[Task, Task | None] = {start: None}
    found = [start]
    while found:
        one = found.pop()
        if one is target:
            return _chain(one, following)
        for before in one.upstream:
            if before not in following:
                following[before] = one
                found.append(before)
    return None


def _chain(first: Task, following: Mapping[Task, Task | None]) -> list[Task]:
    chain = [first]
    while (after := following[chain[-1]]) is not None:
        chain.append(after)
    return chain
