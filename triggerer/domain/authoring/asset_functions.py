"""`@asset`: turns a function into a DAG of one task, and into the asset or assets that the task updates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from triggerer.domain.assets import Asset, AssetAlias, AssetWatcher
from triggerer.domain.authoring.airflow_names import argument_hint
from triggerer.domain.conditions import AssetAll
from triggerer.domain.dags import DAG
from triggerer.domain.tasks import TaskOptions
from triggerer.errors import DagError

_DAG_OPTIONS: Final = frozenset(inspect.signature(DAG).parameters) - {"dag_id", "schedule"}

_OWN_OPTIONS: Final = ("schedule", "name", "uri", "group", "extra", "watchers", "dag_id")


class AssetFunction(Asset):
    """An asset that a function makes, and the DAG that calls the function.

    An `AssetFunction` is equal to a plain asset with the same name and URI.
    """

    __slots__ = ("dag", "function")

    dag: DAG
    function: Callable[..., Any]


class MultiAssetFunction(AssetAll):
    """All assets that one function makes, as an expression, and the DAG that calls the function."""

    __slots__ = ("dag", "function")

    dag: DAG
    function: Callable[..., Any]


_Made = TypeVar("_Made", AssetFunction, MultiAssetFunction)


class _Decorator:
    def __init__(self, *, schedule: Any, dag_id: str | None, options: Mapping[str, Any]) -> None:
        if unknown := sorted(set(options) - _DAG_OPTIONS):
            raise DagError(
                f"@asset does not know the option {unknown[0]!r}",
                hint=argument_hint(unknown[0], [*_OWN_OPTIONS, *_DAG_OPTIONS]),
            )
        self._schedule = schedule
        self._dag_id = dag_id
        self._options = options

    def _make_dag(
        self,
        default_id: str,
        function: Callable[..., Any],
        outlets: Iterable[Asset | AssetAlias],
        self_argument: Asset | AssetAll,
    ) -> DAG:
        name = _checked_name(function)
        with DAG(self._dag_id or default_id, schedule=self._schedule, **self._options) as dag:
            given = (
                {"self": self_argument} if "self" in inspect.signature(function).parameters else {}
            )
            options = TaskOptions(outlets=tuple(dict.fromkeys(outlets)))
            dag.add_task(name, function, options, (), given, names_assets=True)
        return dag


class asset(_Decorator):  # noqa: N801  (a decorator, named as in Airflow)
    """Turn a function into an asset, and into a DAG whose one task calls the function: `@asset(schedule="@daily")`.

    The run fills in the function's parameters by name:

    - `self` is the asset.
    - `dag_run`, `params` and the other context arguments are those of a task.
    - `context` is a mapping of all context arguments, with `spark` only if the function also has a parameter `spark`.
    - Any other parameter without a default is the asset with the parameter's name. The asset becomes an inlet.

    Args:
        schedule: The DAG's schedule.
        name: The asset's name; default: the function's name.
        uri: The asset's URI; default: the name.
        group, extra, watchers: Arguments of the asset.
        dag_id: Default: the asset's name.
        options: Other arguments of the DAG.
    Raises:
        DagError: An argument is invalid.
    """

    def __init__(
        self,
        *,
        schedule: Any,
        name: str | None = None,
        uri: str | None = None,
        group: str = "asset",
        extra: Mapping[str, Any] | None = None,
        watchers: Iterable[AssetWatcher] = (),
        dag_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(schedule=schedule, dag_id=dag_id, options=options)
        self._name = name
        self._uri = uri
        self._group, self._extra, self._watchers = group, extra, watchers

    def __call__(self, function: Callable[..., Any]) -> AssetFunction:
        name = self._name or _checked_name(function)
        made = AssetFunction(
            name=name,
            uri=self._uri,
            group=self._group,
            extra=self._extra,
            watchers=self._watchers,
        )
        dag = self._make_dag(name, function, [made], made)
        return _wrapped(made, function, dag)

    class multi(_Decorator):  # noqa: N801
        """Turn a function into a DAG of one task that makes several assets: `@asset.multi(schedule=, outlets=[…])`.

        Args:
            schedule, dag_id, options: As in `@asset`, but `dag_id` defaults to the function's name. Without a schedule,
                all runs are triggered manually.
            outlets: At least one asset or alias. The function's `self` stands for all outlets.
        """

        def __init__(
            self,
            *,
            schedule: Any = None,
            outlets: Iterable[Asset | AssetAlias],
            dag_id: str | None = None,
            **options: Any,
        ) -> None:
            super().__init__(schedule=schedule, dag_id=dag_id, options=options)
            self._outlets = tuple(outlets)
            if not self._outlets:
                raise DagError("@asset.multi needs at least one outlet")
            for outlet in self._outlets:
                if not isinstance(outlet, Asset | AssetAlias):
                    raise DagError(
                        f"@asset.multi: outlets must be assets or aliases, not {outlet!r}"
                    )

        def __call__(self, function: Callable[..., Any]) -> MultiAssetFunction:
            made = MultiAssetFunction(*self._outlets)
            dag = self._make_dag(_checked_name(function), function, self._outlets, made)
            return _wrapped(made, function, dag)


def _wrapped(made: _Made, function: Callable[..., Any], dag: DAG) -> _Made:
    object.__setattr__(made, "dag", dag)
    object.__setattr__(made, "function", function)
    return made


def _checked_name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str) or not name.isidentifier():
        raise DagError(f"@asset takes a function with a name, not {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DagError(f"@asset function {name!r} is async", hint="make it a plain function")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DagError(f"@asset function {name!r}: '*{parameter.name}' is not supported")
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise DagError(
                f"@asset function {name!r}: the positional-only argument {parameter.name!r}"
                " without a default is not supported"
            )
    return name
