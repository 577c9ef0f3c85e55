"""`output.parquet`: Spark writes a draft. `drafts.py` commits the draft, and gives its files their final names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from triggerer.worker.output.folders import OutputFolder
from triggerer.worker.output.writing import Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("triggerer.run")


def write_parquet(
    df: DataFrame, folder: OutputFolder, writing: Writing, *, partition_by: Sequence[str]
) -> Outcome:
    """Add the rows to the folder once.

    Raises:
        OutputRefused: This attempt is no longer the run's current one.
    """
    name, mark = writing.name, writing.mark
    writing.require_current()
    found = folder.prepare(name)
    if found is None:
        try:
            df.write.partitionBy(*partition_by).parquet(folder.draft(name, mark))
        except Exception:
            _discard(folder, writing)
            raise
        # Directly before the commit, ask the service whether another attempt has replaced this one.
        writing.require_current()
        try:
            found = folder.commit(name, mark)
        except FileNotFoundError:
            # If a later attempt has deleted the draft, raise the error that says so.
            writing.require_current()
            raise
        df.sparkSession.catalog.refreshByPath(folder.identity)
    return writing.outcome(found, folder.identity)


def _discard(folder: OutputFolder, writing: Writing) -> None:
    try:
        folder.discard(writing.name, writing.mark)
    except Exception:
        # The user needs the error of the write, not the error of the deletion. A later try that commits deletes the
        # draft.
        logger.exception("a draft could not be deleted")
