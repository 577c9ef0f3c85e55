"""`output.parquet`: Spark writes a draft, and `drafts` commits it and moves its files to their final names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triggerer.worker.output.places import Place
from triggerer.worker.output.writing import Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("triggerer.run")


def write_parquet(
    df: DataFrame, place: Place, writing: Writing, *, partition_by: Sequence[str]
) -> Outcome:
    """Add the rows to the folder once.

    Raises:
        OutputRefused: This attempt is no longer the run's current one.
    """
    name, mark = writing.name, writing.mark
    writing.require_current()
    found = place.prepare(name)
    if found is None:
        try:
            df.write.partitionBy(*partition_by).parquet(place.draft(name, mark))
        except Exception:
            _discard(place, writing)
            raise
        # Directly before the commit, ask the service whether another attempt has replaced this one.
        writing.require_current()
        try:
            found = place.commit(name, mark)
        except FileNotFoundError:
            # If a later attempt has deleted the draft, raise the error that says so.
            writing.require_current()
            raise
        df.sparkSession.catalog.refreshByPath(place.identity)
    return writing.outcome(found, place.identity)


def _discard(place: Place, writing: Writing) -> None:
    try:
        place.discard(writing.name, writing.mark)
    except Exception:
        # The user needs the error of the write, not the error of the deletion. The next try deletes the draft.
        logger.exception("a draft could not be deleted")
