"""Calls a DAG's callbacks after one of its runs, in a process that a worker has forked."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import NoReturn

from triggerer.domain.attempts import CallbackOrder
from triggerer.domain.dags import Callback
from triggerer.plugins.dag_file import load_dag_file
from triggerer.worker.attempt import WorkerContext
from triggerer.worker.context import RunContext
from triggerer.worker.failures import ProcessStopped
from triggerer.worker.users_code import users_code

logger = logging.getLogger("triggerer.run")


def call_back(order: CallbackOrder, worker: WorkerContext) -> None:
    """Call the callbacks one after the other. If a callback fails, log its error and call the next callback.

    Raises:
        ProcessStopped: The executor stops this process.
    """
    run = order.run
    try:
        with worker.output_into(Path(run.log_path)):
            try:
                _call_all(order, worker)
            except ProcessStopped:
                raise
            except BaseException as error:
                logger.error("the callbacks could not be called", exc_info=error)
    except OSError as error:
        # The log cannot be opened. No callback was called, because users could not see what a callback does.
        logging.getLogger(__name__).error("no callback of %s was called: %s", run.run_id, error)


def _call_all(order: CallbackOrder, worker: WorkerContext) -> None:
    run = order.run
    with users_code():
        loaded = load_dag_file(worker.dags_folder / run.path, worker.dags_folder)
    dag = loaded.dags.get(run.dag_id)
    if dag is None:
        logger.error("%s does not define the DAG %s any more", run.path, run.dag_id)
        return
    context = RunContext(
        run, dag, functools.partial(worker.query, run.run_pk), _no_spark, _no_spark
    )
    for callback in dag.callbacks_after(order.state):
        name = _name(callback)
        try:
            with users_code():
                callback(context.callback_context(order.state, order.error))
        except ProcessStopped:
            raise
        except BaseException as error:
            logger.error("callback %s failed", name, exc_info=error)
        else:
            logger.info("callback %s was called after %s", name, order.state)


def _name(callback: Callback) -> str:
    return getattr(callback, "__name__", None) or repr(callback)


def _no_spark() -> NoReturn:
    raise AssertionError("a callback's context has no session")
