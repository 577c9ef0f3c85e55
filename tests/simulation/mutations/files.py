"""Bugs in what happens while DAG files are replaced and read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.simulation.mutations.registry import Replacements, mutation
from triggerer.domain.dag_files import missing_files, new_streams
from triggerer.domain.dag_files.missing_files import MissingFiles


@mutation(rules="S11", seed=6, quick=True)
def a_file_that_is_replaced_counts_as_deleted() -> Replacements:
    """A missing file counts as deleted at once."""
    right = missing_files.judge_missing

    def judge_missing(*arguments: Any, **options: Any) -> MissingFiles:
        return right(*arguments, **{**options, "grace": timedelta()})

    yield right, judge_missing


@mutation(rules="S11", seed=40, quick=True)
def a_new_stream_opens_while_files_are_read() -> Replacements:
    """A new stream opens when the first file with its watchers is stored. Its watchers in later files miss messages."""
    right = new_streams.closings

    def closings(*arguments: Any, is_reading: bool, **options: Any) -> dict[str, Any]:
        return {} if is_reading else right(*arguments, is_reading=False, **options)

    yield right, closings
