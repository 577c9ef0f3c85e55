"""Adds the files of an output to a folder once: Spark writes a draft, a commit follows, and the files get final names.

A folder with outputs has the hidden folder `_triggerer`. Spark's readers ignore it, because its name begins with `_`:

    path/part-00000-<name>-c000.parquet           what readers see
    path/_triggerer/drafts/<name>.<mark>/...      a try's files, as Spark wrote them
    path/_triggerer/written/<name>.json           the commit: the draft's mark, and each file's final name

1. A try commits its draft by creating the commit's file. If two tries run at the same time, only one of them can create
   this file.
2. The try moves the draft's files to their final names. If the try dies during the moves, the next write to the folder,
   by any task, finishes the moves.

A draft is deleted only in three cases:

- The try could not write the draft completely.
- Another draft of the same output was committed.
- The draft is more than a week old. Then `commit` refuses the draft.

`<name>` is the output's name, see `Writing`. `<mark>` names the call that wrote the draft, see `marks`.

This module is sent to Spark Connect servers, so it imports nothing of ours except `marks`, which is sent as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from triggerer.worker.output.marks import is_stale

HIDDEN: Final = "_triggerer"
_SPARKS_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Files(Protocol):
    """A file system. A missing folder is made when a file is written into it."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if there is no such folder."""

    def visible_below(self, folder: str) -> list[str]:
        """Return the files below the folder that Spark's readers would see, as sorted paths relative to the folder."""

    def read(self, path: str) -> str | None:
        """Return a file's text; None if there is no such file."""

    def create(self, path: str, text: str, *, by_way_of: str) -> None:
        """Create a file with its whole text in one step, unless the file exists.

        Args:
            by_way_of: A temporary path where the method can write the text first. The path's folder must exist.
        """

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files. If a source is gone, an earlier call has moved it, and nothing happens."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""


def draft_path(path: str, name: str, mark: str) -> str:
    """Return the folder of a draft, where a try writes its files before the commit."""
    return f"{path}/{HIDDEN}/drafts/{name}.{mark}"


def prepare(files: Files, path: str, name: str) -> str | None:
    """Finish the commits that earlier tries left unfinished, and delete drafts that can no longer be committed.

    Returns:
        The mark of the call that wrote this output. None: no call has written it.
    """
    _tidy(files, path)
    commit = _commit_of(files, path, name)
    return None if commit is None else str(commit["mark"])


def commit(files: Files, path: str, name: str, mark: str) -> str:
    """Commit the draft and move its files to their final names, unless another try has committed first.

    Returns:
        The mark of the call whose draft the readers see.
    Raises:
        FileNotFoundError: The draft is more than a week old, or was deleted.
    """
    if is_stale(mark):
        raise FileNotFoundError(f"the draft {draft_path(path, name, mark)} is more than a week old")
    try:
        _create_commit(files, path, name, mark)
    except FileNotFoundError:
        # If another try has committed, it has deleted this draft, and the missing draft is no error.
        if _commit_of(files, path, name) is None:
            raise
    found = _commit_of(files, path, name)
    if found is None:
        raise FileNotFoundError(f"{_commit_path(path, name)} vanished while it was read")
    _tidy(files, path)
    return str(found["mark"])


def discard(files: Files, path: str, name: str, mark: str) -> None:
    """Delete a draft that will not be committed."""
    files.delete(draft_path(path, name, mark))


def _create_commit(files: Files, path: str, name: str, mark: str) -> None:
    draft = draft_path(path, name, mark)
    moves = [(one, _final_name(one, name)) for one in files.visible_below(draft)]
    text = json.dumps({"mark": mark, "files": moves}, indent=1)
    files.create(_commit_path(path, name), text, by_way_of=f"{draft}/_commit.json")


def _tidy(files: Files, path: str) -> None:
    """Move the files of committed drafts to their final names, and delete drafts that can no longer be committed."""
    for entry in files.names(f"{path}/{HIDDEN}/drafts"):
        name, _, mark = entry.rpartition(".")
        found = _commit_of(files, path, name)
        if found is not None and found["mark"] == mark:
            _publish(files, path, name, found)
        elif found is not None or is_stale(mark):
            files.delete(draft_path(path, name, mark))


def _publish(files: Files, path: str, name: str, found: dict[str, Any]) -> None:
    draft = draft_path(path, name, found["mark"])
    files.move_all([(f"{draft}/{one}", f"{path}/{target}") for one, target in found["files"]])
    files.delete(draft)


def _commit_path(path: str, name: str) -> str:
    return f"{path}/{HIDDEN}/written/{name}.json"


def _commit_of(files: Files, path: str, name: str) -> dict[str, Any] | None:
    text = files.read(_commit_path(path, name))
    return None if text is None else json.loads(text)


def _final_name(relative: str, name: str) -> str:
    """Return Spark's name of the file, with the output's name instead of the job's id."""
    folder, slash, file = relative.rpartition("/")
    renamed, count = _SPARKS_ID.subn(name, file, count=1)
    return f"{folder}{slash}{renamed if count else f'{name}-{file}'}"
