"""Stores a launch before it begins, and replies to the run's process once the launch is stored."""

from __future__ import annotations

from typing import Any

import structlog

from triggerer.backoff import Backoff, log_failure, retry
from triggerer.domain.attempts import RunOrder
from triggerer.errors import StoreError, TransientStoreError
from triggerer.executor.result_writer import ResultWriter
from triggerer.executor.slots.worker_frames import LAUNCH, QueryFrame
from triggerer.worker.protocol import message

_log = structlog.get_logger(__name__)


async def store_launch(
    result_writer: ResultWriter, order: RunOrder, question: QueryFrame
) -> dict[str, Any]:
    """Store the launch that the query `launch` contains, and return the reply. Wait while the store is unavailable."""
    error = None
    try:
        launch = LAUNCH.validate_python(question["fields"].get("launch"))
        is_ours = await retry(
            lambda: result_writer.store_launch(order, launch),
            on=TransientStoreError,
            backoff=Backoff(first=0.2, longest=10.0),
            on_failure=log_failure(_log, "a launch waits for the store", run=order.run_id),
        )
        if not is_ours:
            error = "nothing was launched: the run was given to another attempt"
    except ValueError as reason:
        error = f"the launch cannot be understood: {reason}"
    except StoreError as reason:
        error = str(reason)
    return message("reply", number=question["number"], value=None, error=error)
