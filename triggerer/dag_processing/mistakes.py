"""Finds probable mistakes in DAG files: pools that nobody configured, and tasks that are never called."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from triggerer.domain.dag_files.parsed import Problem
from triggerer.domain.tasks import TaskFunction
from triggerer.errors import DagFileError
from triggerer.nearest import nearest
from triggerer.plugins.dag_file import LoadedFile


def refuse_unknown_pools(loaded: LoadedFile, pools: Collection[str] | None) -> None:
    """Refuse a task whose pool the configuration does not name.

    Args:
        pools: The names in `[pools]`. None: the configuration is unknown, and every pool is accepted.
    Raises:
        DagFileError: The message names the task, and the pool that its author probably meant.
    """
    if pools is None:
        return
    for dag in loaded.dags.values():
        for task in dag.tasks.values():
            if task.pool is not None and task.pool not in pools:
                raise DagFileError(
                    f"task {task.task_id!r} of DAG {dag.dag_id!r}: there is no pool {task.pool!r}",
                    file=loaded.path,
                    line=task.defined_at.line if task.defined_at else None,
                    hint=_meant(task.pool, pools),
                )


def _meant(pool: str, pools: Collection[str]) -> str:
    if (found := nearest(pool, pools)) is not None:
        return f"did you mean {found!r}?"
    if pool == "default_pool":
        return "leave it out: a task without a pool waits for no slot"
    return f"add `{pool} = SLOTS` to [pools] of the configuration, and restart a running service"


def uncalled_functions(loaded: LoadedFile) -> Iterator[Problem]:
    """Yield a problem for each `@task` function that no DAG calls, and that therefore never runs.

    A file without DAGs may be a library, so its functions at module level cause no problem.
    """
    for function, dag in loaded.task_functions:
        location = function.defined_at
        if function.is_called or location is None:
            continue
        if dag is not None and dag in loaded.dags.values():
            where, at = f"DAG {dag.dag_id!r}: ", "in the DAG"
        elif dag is None and loaded.dags and location.file == loaded.module.__file__:
            where, at = "", "in a DAG"
        else:
            continue
        yield Problem(loaded.path, location.line, f"{where}{_complaint(function, at)}")


def _complaint(function: TaskFunction, at: str) -> str:
    name = function.name
    return (
        f"the @task function {name!r} is never called, so it never runs (call it {at}: {name}(...))"
    )
