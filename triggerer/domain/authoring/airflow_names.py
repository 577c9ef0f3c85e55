"""Names that users of Airflow type, and their counterparts here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib import import_module
from typing import Final

from triggerer.nearest import hint

ARGUMENTS: Final = {
    "apache_kafka_conn_id": "connection",
    "aws_conn_id": "connection",
    "azure_service_bus_conn_id": "connection",
    "concurrency": "max_parallel_tasks",
    "conn_id": "connection",
    "dag_name": "dag_id",
    "doc": "description",
    "doc_md": "description",
    "execution_timeout": "timeout",
    "gcp_conn_id": "connection",
    "kafka_config_id": "connection",
    "max_active_tasks": "max_parallel_tasks",
    "poll_interval": "poke_interval",
    "poll_timeout": "poke_interval",
    "priority_weight": "priority",
    "queue_name": "queue",
    "queue_url": "queue",
    "schedule_interval": "schedule",
    "sqs_queue": "queue",
    "template_fields": "templated",
    "timetable": "schedule",
    "waiter_delay": "poke_interval",
}
"""Airflow's name of an argument -> our name. `argument_hint` mentions our name only if the called function has such an
argument."""

ADVICE: Final = {
    "apply_function": "match={...} chooses messages",
    "dagrun_timeout": "give each task a timeout: @task(timeout=...)",
    "depends_on_past": "it belongs to the DAG: DAG(depends_on_past=True)",
    "email": "leave it out, and send mail from the DAG's on_failure_callback",
    "email_on_failure": "leave it out, and send mail from the DAG's on_failure_callback",
    "email_on_retry": "leave it out, and send mail from the DAG's on_failure_callback",
    "end_date": "it belongs to the DAG: DAG(end_date=...)",
    "max_active_tis_per_dag": "name a pool: @task(pool=...)",
    "on_failure_callback": "it belongs to the DAG: DAG(on_failure_callback=...)",
    "on_success_callback": "it belongs to the DAG: DAG(on_success_callback=...)",
    "owner": "leave it out, or write it into DAG(tags=[...])",
    "pool_slots": "leave it out: a run uses one slot of each of its pools",
    "priority_weight": "it belongs to the DAG: DAG(priority=...)",
    "schedule": "it belongs to the DAG: DAG(schedule=...)",
    "start_date": "it belongs to the DAG: DAG(start_date=...)",
    "trigger_rule": "leave it out: a task runs once all tasks that it waits for have succeeded",
}
"""Airflow's name of an argument -> advice, if the called function has no counterpart of the argument."""

_IMPORTS: Final = {
    "Dataset": "Asset",
    "DatasetAlias": "AssetAlias",
    "DatasetAll": "AssetAll",
    "DatasetAny": "AssetAny",
    "DatasetOrTimeSchedule": "AssetOrTimeSchedule",
    "AirflowSkipException": "SkipTask",
}
_INSTEAD: Final = {
    "BashOperator": "call subprocess.run in a @task function",
    "PythonOperator": "make the function a task with @task",
    "SparkSubmitOperator": "name `spark` as an argument of a @task function",
    "TriggerDagRunOperator": "let a task emit an asset that the other DAG is scheduled on",
    "Variable": "read os.environ or a file, or give the DAG params",
    "chain": "order tasks by a >> b",
    "dag": "write `with DAG(...):`",
    "get_current_context": "name what the function needs as its arguments, such as `dag_run` or `params`",
}
_MODULES: Final = ("triggerer", "triggerer.timetables", "triggerer.partitions")


def argument_hint(name: str, known: Iterable[str]) -> str | None:
    """Return advice for an unknown argument, or None if no advice is known."""
    names = list(known)
    ours = ARGUMENTS.get(name)
    if ours in names:
        return f"Airflow's {name!r} is {ours!r} here"
    return ADVICE.get(name) or hint(name, names)


def import_hint(names: Collection[str]) -> str | None:
    """Return the import statement for these names of Airflow, and advice for names without a counterpart here.

    None: there is neither an import nor advice for any of the names.
    """
    found: dict[str, list[str]] = {}
    advice: list[str] = []
    for name in names:
        ours = _IMPORTS.get(name, name)
        home = next((one for one in _MODULES if ours in import_module(one).__all__), None)
        if home is not None:
            found.setdefault(home, []).append(ours)
        elif name in _INSTEAD:
            advice.append(f"in place of {name}, {_INSTEAD[name]}")
    imports = [
        f"write `from {home} import {', '.join(dict.fromkeys(ours))}`"
        for home, ours in found.items()
    ]
    return "; ".join([*imports, *advice]) or None
