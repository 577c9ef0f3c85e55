"""`SparkSql` and `SparkApplication`: tasks for which the user writes no function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from posixpath import splitext
from types import MappingProxyType
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from triggerer.domain.assets import Asset, AssetAlias
from triggerer.domain.authoring.airflow_names import argument_hint
from triggerer.domain.authoring.arguments import result_of
from triggerer.domain.authoring.spark_values import checked_conf, checked_packages
from triggerer.domain.authoring.sql_statements import split_statements
from triggerer.domain.tasks import OPTION_NAMES, Task, TaskOptions
from triggerer.errors import DagError

Outlets = Asset | AssetAlias | Iterable[Asset | AssetAlias]


class Log(Protocol):
    """The log of the run, as tasks receive it."""

    def info(self, message: str, /, *values: object) -> None: ...


SHOWN_ROWS: Final = 20
_WIDEST: Final = 60
_KINDS: Final = (".py", ".jar")
_OTHERS: Final = OPTION_NAMES - {"task_id", "outlets", "templated"}


def SparkSql(  # noqa: N802  (it reads as the kind of a task)
    task_id: str,
    sql: str,
    *,
    arguments: Mapping[str, Any] | Sequence[Any] | None = None,
    outlets: Outlets = (),
    templated: bool = True,
    **options: Any,
) -> Task:
    """Add a task that executes SQL, and return the task. Call it inside `with DAG(...)`.

    The run's log shows the first rows of the last statement's result. The results of earlier statements are computed
    and dropped.

    Args:
        sql: One statement, or several with `;` between them.
        arguments: Values for the markers in the statements: a mapping for `:name`, a list for `?`. Results of other
            tasks may be among the values. Spark quotes all values.
        outlets: The assets that the task updates.
        templated: True to render `sql` with Jinja before it is split.
        options: Other options of `@task`, such as `retries`, `timeout` and `pool`.
    Raises:
        DagError: An argument is invalid, or the call is outside a DAG.
    """
    owner = f"SparkSql {task_id!r}"
    given: object = sql
    if not isinstance(given, str) or not given.strip():
        raise DagError(f"{owner}: sql must be text with at least one statement, not {sql!r}")
    if not (templated and "{" in sql):
        try:
            statements = split_statements(sql)
        except DagError as error:
            raise DagError(f"{owner}: {error.message}") from error
        if not statements:
            raise DagError(f"{owner}: sql has comments and no statement")
    if arguments is not None and not isinstance(arguments, Mapping | list | tuple):
        raise DagError(
            f"{owner}: arguments must be a mapping (:name) or a list (?), not {arguments!r}"
        )
    return _add(
        owner,
        task_id,
        _execute_sql,
        {"sql": sql, "arguments": arguments},
        {**options, "outlets": outlets, "templated": ("sql",) if templated else ()},
    )


def SparkApplication(  # noqa: N802
    task_id: str,
    application: str,
    *,
    arguments: Sequence[Any] = (),
    conf: Mapping[str, Any] = MappingProxyType({}),
    packages: Sequence[str] = (),
    outlets: Outlets = (),
    main_class: str | None = None,
    **options: Any,
) -> Task:
    """Add a task that submits a Spark application, and return the task. Call it inside `with DAG(...)`.

    The task ends with the application, and fails if the application fails. The application's environment contains
    `TRIGGERER_DAG_ID`, `TRIGGERER_RUN_ID`, `TRIGGERER_TASK_ID`, and the token of the task's output as
    `TRIGGERER_RUN_TOKEN`.

    Args:
        application: A Python file or a jar: a path below the DAGs folder, an absolute path, or a URL that the cluster
            can read. Jinja renders `application`, `arguments` and `conf`.
        arguments: The application's arguments. Results of other tasks may be among them.
        conf: Spark's settings for this application. They win over `spark_conf` of the DAG and `[spark] conf`.
            `"spark.submit.deployMode": "cluster"` starts the driver on the cluster.
        packages: Maven coordinates, such as `org.apache.spark:spark-avro_2.13:4.1.1`.
        outlets: The assets that the task updates.
        main_class: The class to start, if the application is a jar whose manifest names none.
        options: Other options of `@task`, such as `retries`, `timeout` and `pool`.
    Raises:
        DagError: An argument is invalid, or the call is outside a DAG.
    """
    owner = f"SparkApplication {task_id!r}"
    given: object = application
    if not isinstance(given, str) or not given.strip():
        raise DagError(f"{owner}: application must be a path or a URL, not {application!r}")
    if "{" not in application and kind_of(application) is None:
        raise DagError(f"{owner}: {application!r} is neither a Python file (.py) nor a jar (.jar)")
    if isinstance(arguments, str) or not isinstance(arguments, list | tuple):
        raise DagError(f"{owner}: arguments must be a list, not {arguments!r}")
    for argument in arguments:
        if not isinstance(argument, str | int | float) and result_of(argument) is None:
            raise DagError(
                f"{owner}: an argument is text, a number or another task's result, not {argument!r}"
            )
    if main_class is not None and kind_of(application) == ".py":
        raise DagError(f"{owner}: main_class is for a jar, and {application!r} is a Python file")
    values = {
        "application": application,
        "arguments": list(arguments),
        "conf": checked_conf(conf, f"{owner}: conf"),
        "packages": checked_packages(packages, f"{owner}: packages"),
        "main_class": main_class,
    }
    templated = ("application", "arguments", "conf")
    return _add(
        owner,
        task_id,
        _submit_application,
        values,
        {**options, "outlets": outlets, "templated": templated},
    )


def kind_of(application: str) -> str | None:
    """Return `.py` or `.jar`, or None if the application is neither."""
    suffix = splitext(urlsplit(application).path)[1].lower()
    return suffix if suffix in _KINDS else None


def _add(
    owner: str,
    task_id: str,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    options: dict[str, Any],
) -> Task:
    from triggerer.domain.dags import current_dag

    dag = current_dag()
    if dag is None:
        raise DagError(f"{owner} is made outside a DAG", hint="make it inside `with DAG(...)`")
    if unknown := sorted(set(options) - OPTION_NAMES):
        raise DagError(
            f"{owner} does not know the option {unknown[0]!r}",
            hint=argument_hint(unknown[0], _OTHERS),
        )
    checked = TaskOptions.checked(owner, **options)
    return dag.add_task(task_id, function, checked, (), arguments, internal=("submit",))


def _execute_sql(spark: Any, log: Log, sql: str, arguments: Any) -> None:
    """Execute the statements in order, and log the first rows of the last result."""
    statements = split_statements(sql)
    if not statements:
        raise DagError("the SQL has no statement", hint="look at what its template renders to")
    for number, statement in enumerate(statements, 1):
        which = f"statement {number} of {len(statements)}: {_beginning(statement)}"
        log.info("%s", which)
        try:
            shown = _execute_statement(
                spark, statement, arguments, is_last=number == len(statements)
            )
        except Exception as error:
            error.add_note(f"It was {which}")
            raise
        if shown is not None:
            log.info("result:\n%s", shown)


def _execute_statement(spark: Any, statement: str, arguments: Any, *, is_last: bool) -> str | None:
    """Compute the statement's result. If the statement is the last and has a result, return the first rows."""
    # With `arguments`, Spark reads `:` and `?` as markers. Without arguments, a statement can use these characters for
    # something else, such as a JSON path.
    frame = spark.sql(statement, arguments) if arguments else spark.sql(statement)
    if not frame.columns:
        # A statement without a result, such as an INSERT, has been executed by `spark.sql` already.
        return None
    if not is_last:
        frame.write.format("noop").mode("overwrite").save()
        return None
    return _table(frame.columns, frame.take(SHOWN_ROWS + 1))


def _submit_application(
    submit: Callable[..., None],
    application: str,
    arguments: Sequence[Any],
    conf: Mapping[str, str],
    packages: Sequence[str],
    main_class: str | None,
) -> None:
    """Submit the application with the function `submit`, which the run fills in."""
    submit(application, arguments=arguments, conf=conf, packages=packages, main_class=main_class)


def _beginning(statement: str) -> str:
    line = re.sub(r"\s+", " ", statement)
    return line if len(line) <= 2 * _WIDEST else f"{line[: 2 * _WIDEST]}…"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    shown = [[_cell(value) for value in row] for row in (columns, *rows[:SHOWN_ROWS])]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]
    if len(rows) > SHOWN_ROWS:
        lines.append(f"… only the first {SHOWN_ROWS} rows are shown")
    elif not rows:
        lines.append("(no rows)")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    text = "NULL" if value is None else re.sub(r"\s+", " ", str(value))
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
