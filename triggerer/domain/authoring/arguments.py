"""Binds the arguments of a task's function.

An argument comes from the call, from the result of another task, or, if it has a name such as
`run_id`, from the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from triggerer.domain.authoring.airflow_names import argument_hint
from triggerer.errors import DagError

if TYPE_CHECKING:
    from triggerer.domain.tasks import Task

CONTEXT_ARGUMENTS: Final = (
    "spark",
    "output",
    "triggering_asset_events",
    "outlet_events",
    "inlet_events",
    "dag_run",
    "run_id",
    "logical_date",
    "data_interval_start",
    "data_interval_end",
    "params",
    "log",
)
"""The arguments that a run fills in by name, unless the call passes them."""
_WITHOUT_SPARK: Final = frozenset(CONTEXT_ARGUMENTS) - {"spark"}


@dataclass(frozen=True, slots=True)
class Result:
    """A placeholder in a DAG file for the return value of a task, or for an item of it."""

    task: Task
    path: tuple[Any, ...] = ()

    # Without this line, a `for` loop over a result would call `__getitem__` with 0, 1, 2 and so on for ever.
    __iter__ = None

    def __getitem__(self, key: Any) -> Result:
        return Result(self.task, (*self.path, key))

    def value(self, results: Mapping[str, Any]) -> Any:
        """Return the task's return value, or the item at `path` in it. `results` are the return values by task id."""
        value = results[self.task.task_id]
        for key in self.path:
            value = value[key]
        return value


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call of a task's function, bound when the DAG file is parsed."""

    bound: inspect.BoundArguments
    by_name: frozenset[str]
    """The names of the function's parameters that a run fills in, such as `params`."""
    into_keywords: frozenset[str] = frozenset()
    """The `CONTEXT_ARGUMENTS` that go into the function's `**keywords`."""
    takes_context: bool = False
    """True if the parameter `context` receives a mapping of the context arguments. The mapping has `spark` only if the
    function also names `spark`."""
    inlets: tuple[str, ...] = ()
    """The function's parameters that receive an asset. The run looks up the asset that has the parameter's name."""

    @classmethod
    def bind(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        owner: str,
        names_assets: bool = False,
        internal: Sequence[str] = (),
    ) -> Arguments:
        """Bind a call, and find the arguments that a run must fill in.

        A function with `**keywords` receives the whole context as keywords, as in Airflow. Only `spark` is left out,
        because a session is started only for a task that names `spark`.

        Args:
            names_assets: True for `@asset` functions. Their parameter `context` receives a mapping of the context
                arguments. Each further parameter without a value is the name of an asset.
            internal: Names that a run fills in for our own functions, in addition to `CONTEXT_ARGUMENTS`.
        Raises:
            DagError: The call does not fit the function, or it omits a parameter that has no default and that no run
                fills in.
        """
        signature = inspect.signature(function)
        try:
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in signature.parameters]
            known = [*signature.parameters]
            hint = argument_hint(unknown[0], known) if unknown else None
            raise DagError(f"{owner}: {error}", hint=hint) from error
        named, inlets = set[str](), list[str]()
        keywords = frozenset[str]()
        takes_context = False
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                taken = set(signature.parameters) | set(bound.arguments.get(parameter.name, ()))
                keywords = _WITHOUT_SPARK - taken
            elif parameter.kind is parameter.VAR_POSITIONAL or parameter.name in bound.arguments:
                continue
            elif parameter.name in CONTEXT_ARGUMENTS or parameter.name in internal:
                named.add(parameter.name)
            elif parameter.default is not parameter.empty:
                continue
            elif not names_assets:
                raise DagError(
                    f"{owner}: argument {parameter.name!r} is not given, "
                    "has no default, and no run fills it in",
                    hint=f"a run fills in {', '.join(CONTEXT_ARGUMENTS)}",
                )
            elif parameter.name == "context":
                takes_context = True
            else:
                inlets.append(parameter.name)
        return cls(bound, frozenset(named), keywords, takes_context, inlets=tuple(inlets))

    @property
    def from_context(self) -> frozenset[str]:
        """The names whose values `call` needs: names in `CONTEXT_ARGUMENTS`, and the `internal` names of `bind`."""
        whole = _WITHOUT_SPARK if self.takes_context else frozenset[str]()
        return self.by_name | self.into_keywords | whole

    def results(self) -> Iterator[Result]:
        """Yield the results that the call refers to, including results in lists and mappings."""
        return _results_in(self.bound.arguments)

    def call(
        self,
        function: Callable[..., Any],
        *,
        context: Mapping[str, Any],
        results: Mapping[str, Any],
        render: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
    ) -> Any:
        """Call the function. A value replaces each `Result`, also inside lists and mappings.

        Args:
            context: Values by name, at least for the names in `from_context` and `inlets`.
            results: The return values of other tasks, by task id.
            render: Functions by argument name. Each receives its argument before results are filled in, and returns the
                new value.
        """
        values = {
            name: _filled(render[name](value) if name in render else value, results)
            for name, value in self.bound.arguments.items()
        }
        full = inspect.BoundArguments(self.bound.signature, values)
        for name in (*self.by_name, *self.inlets):
            full.arguments[name] = context[name]
        if self.takes_context:
            full.arguments["context"] = {name: context[name] for name in self.from_context}
        if self.into_keywords:
            (rest,) = (
                parameter.name
                for parameter in full.signature.parameters.values()
                if parameter.kind is parameter.VAR_KEYWORD
            )
            given = full.arguments.get(rest, {})
            full.arguments[rest] = {name: context[name] for name in self.into_keywords} | given
        return function(*full.args, **full.kwargs)


def result_of(value: Any) -> Result | None:
    """Return a `Result` as it is, a `Task` as the `Result` of its return value, and None for any other value."""
    from triggerer.domain.tasks import Task

    if isinstance(value, Task):
        return Result(value)
    return value if isinstance(value, Result) else None


def _results_in(value: Any) -> Iterator[Result]:
    if (result := result_of(value)) is not None:
        yield result
    elif isinstance(value, dict):
        for item in value.values():
            yield from _results_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _results_in(item)


def _filled(value: Any, results: Mapping[str, Any]) -> Any:
    if (result := result_of(value)) is not None:
        return result.value(results)
    # Do not copy a value without results: its class may be one that this function cannot copy.
    if next(_results_in(value), None) is None:
        return value
    if isinstance(value, dict):
        return {key: _filled(item, results) for key, item in value.items()}
    items = [_filled(item, results) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*items)
    if isinstance(value, tuple):
        return tuple(items)
    return items if isinstance(value, list) else set(items)
