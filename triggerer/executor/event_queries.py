"""Answers the queries of a run's process, such as which asset events there are, or whether it may commit an output."""

from __future__ import annotations

import dataclasses
from typing import Any

import structlog

from triggerer.backoff import Backoff, log_failure, retry
from triggerer.domain.attempts import RunOrder
from triggerer.domain.text.known_fields import known_fields
from triggerer.errors import StoreError, TransientStoreError
from triggerer.executor.launch_queries import store_launch
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.slots.worker_frames import QueryFrame
from triggerer.executor.spooling.spools import Spools
from triggerer.store.database.transactions import Database
from triggerer.store.events import run_events
from triggerer.store.runs.current_attempt import is_current
from triggerer.worker.protocol import message

_log = structlog.get_logger(__name__)


async def answer(
    database: Database,
    result_writer: ResultWriter,
    order: RunOrder,
    question: QueryFrame,
    spools: Spools | None = None,
) -> dict[str, Any]:
    """Return the reply to a query of a run's process. Wait while the store is unavailable.

    Args:
        spools: Writes events into files. None: no files are written, and the run reads all events by pages.
    """
    what, fields = question["what"], question["fields"]
    if what == "launch":
        return await store_launch(result_writer, order, question)
    if what.startswith("inlet"):
        # The query must see the events of earlier tasks in this run.
        await result_writer.written(order.run_pk)
    try:
        if what == "spool":
            files = None if spools is None else await spools.write(order, fields)
            return message("reply", number=question["number"], value=files, error=None)
        value = await retry(
            lambda: _look_up(database, result_writer.executor, order, what, fields),
            on=TransientStoreError,
            backoff=Backoff(first=0.2, longest=10.0),
            on_failure=log_failure(_log, "a question waits for the store", run=order.run_id),
        )
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        # Our own code never sends a malformed query. Reply nevertheless, so that the sender does not wait for ever.
        reason = f"the question cannot be understood: {error!r}"
        return message("reply", number=question["number"], value=None, error=reason)
    except StoreError as error:
        return message("reply", number=question["number"], value=None, error=str(error))
    return message("reply", number=question["number"], value=value, error=None)


async def _look_up(
    database: Database, executor: str, order: RunOrder, what: str, fields: dict[str, Any]
) -> Any:
    async with database.reading() as session:
        match what:
            case "may_commit":
                return await is_current(
                    session, executor=executor, run_pk=order.run_pk, epoch=order.epoch
                )
            case "triggering":
                found = await run_events.triggering_assets(session, order.run_pk)
                return [dataclasses.asdict(one) for one in found]
            case "triggering_page":
                page = _page(fields)
                return await run_events.page_of_run(
                    session, page, run_pk=order.run_pk, **fields["about"]
                )
            case "asset":
                named = await run_events.find_asset(session, **fields)
                return None if named is None else dataclasses.asdict(named)
            case "inlet":
                return await run_events.last_event(session, **fields)
            case "inlet_count":
                return await run_events.count_events(session, **fields)
            case "inlet_page":
                page = _page(fields)
                return await run_events.page_of_asset(session, page, **fields["about"])
            case _:
                raise ValueError(f"a worker of this release does not ask for {what}")


def _page(fields: dict[str, Any]) -> run_events.Page:
    return run_events.Page(**known_fields(run_events.Page, fields["page"]))
