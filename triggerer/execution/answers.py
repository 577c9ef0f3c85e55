"""Answers the queries of a run's tasks about asset events."""

from __future__ import annotations

import dataclasses
from typing import Any

import anyio
import structlog

from triggerer.domain.attempts import RunOrder
from triggerer.errors import Conflict, StoreError, StoreUnavailable
from triggerer.execution.protocol import message
from triggerer.execution.result_writer import ResultWriter
from triggerer.runtime.backoff import Backoff
from triggerer.store.engine.database import Database
from triggerer.store.queries.execution import run_events

_log = structlog.get_logger(__name__)


async def answer(
    database: Database, result_writer: ResultWriter, order: RunOrder, question: dict[str, Any]
) -> dict[str, Any]:
    """Return the reply to a worker's query. While the store is away, the query waits."""
    what, fields = question["what"], question["fields"]
    backoff = Backoff(first=0.2, longest=10.0)
    while True:
        try:
            if what.startswith("inlet"):
                # The query sees what earlier tasks of this run have emitted.
                await result_writer.written(order.run_pk)
            value = await _look_up(database, order, what, fields)
        except (StoreUnavailable, Conflict) as error:
            _log.warning("a question waits for the store", run=order.run_id, error=str(error))
            await anyio.sleep(backoff.next_delay(0.0))
        except StoreError as error:
            return message("reply", number=question["number"], value=None, error=str(error))
        else:
            return message("reply", number=question["number"], value=value, error=None)


async def _look_up(database: Database, order: RunOrder, what: str, fields: dict[str, Any]) -> Any:
    async with database.reading() as session:
        match what:
            case "triggering":
                found = await run_events.triggering_assets(session, order.run_pk)
                return [dataclasses.asdict(one) for one in found]
            case "triggering_page":
                page = run_events.Page(**fields["page"])
                return await run_events.page_of_run(
                    session, page, run_pk=order.run_pk, **fields["about"]
                )
            case "inlet":
                return await run_events.last_event(session, **fields)
            case "inlet_count":
                return await run_events.count_events(session, **fields)
            case "inlet_page":
                page = run_events.Page(**fields["page"])
                return await run_events.page_of_asset(session, page, **fields["about"])
            case _:
                raise AssertionError(f"a worker of this release does not ask for {what}")
