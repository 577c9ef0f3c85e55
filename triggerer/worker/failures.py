"""The error texts of failed tasks, and the exceptions that end a task from outside."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from triggerer.domain.text.storable import storable_text
from triggerer.observability.redaction import hide_known, redact_text
from triggerer.plugins import DagsFolder
from triggerer.worker.spark.explanations import without_stacktrace

_LONGEST: Final = 6000


class TaskTimeout(BaseException):
    """A task's time is up. A `BaseException`, so that the task's own handlers do not catch it."""


class ProcessStopped(BaseException):
    """The executor stops this process (SIGTERM). A `BaseException`, so that user code does not catch it."""


def explain(error: BaseException, dags_folder: Path) -> str:
    """Return a traceback for the store, with only the lines from the DAGs folder. The log has the full traceback."""
    try:
        summary = traceback.TracebackException.from_exception(error)
        _trim(summary, f"{DagsFolder(dags_folder).root}/")
        text = "".join(summary.format()).strip()
    except Exception as other:  # noqa: BLE001  (an exception may have anything for its text, its line or its notes)
        text = f"{type(error).__name__} (it cannot be shown: {type(other).__name__})"
    return storable(without_stacktrace(text))


def _trim(summary: traceback.TracebackException, folder: str) -> None:
    # No recursion: code that retries inside its own handler makes chains of hundreds of exceptions.
    seen, unseen = set[int](), [summary]
    while unseen:
        one = unseen.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if str(Path(frame.filename)).startswith(folder)]
        one.stack = traceback.StackSummary.from_list(frames)
        others = (one.__cause__, one.__context__, *(one.exceptions or ()))
        unseen.extend(other for other in others if other is not None)


def storable(text: str) -> str:
    """Return the text for the store: without illegal characters and secrets. A long text loses its middle."""
    text = hide_known(storable_text(text))
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n… {len(text) - 2 * half} characters, see the log …\n{text[-half:]}"
    return redact_text(text)
