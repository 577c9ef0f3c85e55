"""Writes the files of an output into a folder once: as a draft first, then a commit, then moves to the final names.

A folder with outputs has a hidden folder, which Spark's readers ignore, as they ignore every name with a leading `_`:

    path/part-00000-<name>-c000.parquet           what readers see
    path/_triggerer/drafts/<name>.<mark>/...      a try's files, as Spark wrote them
    path/_triggerer/written/<name>.json           the commit: the draft's mark, and each file's final name
    path/_triggerer/swept/<name>.<mark>/...       a draft that is being deleted

The commit is the creation of one file. Two tries that are alive at once try to create this file, and one succeeds.
Then the draft's files are moved to their final names, one by one. If a try dies between the moves, the next write to
the folder by any task finishes them, because the commit's file lists all moves. A draft without a commit is deleted by
the next try of its output, or after a week by any write to the folder.

This module is sent to Spark's servers, so it imports nothing of ours except `marks`, which is sent as well.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Protocol

from triggerer.worker.output.marks import is_stale

HIDDEN: Final = "_triggerer"
_SPARKS_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Files(Protocol):
    """A file system. A missing folder is made when a file is written into it."""

    def exists(self, path: str) -> bool: ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; empty if there is no such folder."""

    def visible_below(self, folder: str) -> list[str]:
        """Return the relative paths of all files that Spark's readers would see below a folder, sorted."""

    def read(self, path: str) -> str | None:
        """Return a file's text; None if there is no such file."""

    def create(self, path: str, text: str, *, by_way_of: str) -> bool:
        """Create a file with its whole text at once; False if the file exists.

        Args:
            by_way_of: The path of a temporary file for the text. Its folder must exist.
        """

    def move(self, source: str, target: str) -> None:
        """Move a file or folder. Do nothing if the source is gone, because an earlier call has moved it."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its contents, if it exists."""


def draft_path(path: str, name: str, mark: str) -> str:
    """Return the folder for the files of a try."""
    return f"{path}/{HIDDEN}/drafts/{name}.{mark}"


def prepare(files: Files, path: str, name: str) -> str | None:
    """Finish the commits of earlier tries, and delete their drafts.

    Returns:
        The mark of the try that wrote this output. None: no try has written it.
    """
    for kind in ("swept", "drafts"):
        for entry in files.names(f"{path}/{HIDDEN}/{kind}"):
            _tidy(files, path, kind, entry, name)
    commit = _commit_of(files, path, name)
    return None if commit is None else str(commit["mark"])


def commit(files: Files, path: str, name: str, mark: str) -> str:
    """Commit the draft and move its files to their final names, unless another try has committed first.

    Returns:
        The mark of the try whose draft the readers see.
    Raises:
        FileNotFoundError: A later try has deleted the draft.
    """
    draft = draft_path(path, name, mark)
    moves = [(one, _final_name(one, name)) for one in files.visible_below(draft)]
    text = json.dumps({"mark": mark, "files": moves}, indent=1)
    files.create(_commit_path(path, name), text, by_way_of=f"{draft}/_commit.json")
    found = _commit_of(files, path, name)
    if found is None:
        raise FileNotFoundError(f"{_commit_path(path, name)} vanished while it was read")
    _publish(files, path, name, found)
    if found["mark"] != mark:
        files.delete(draft)
    return str(found["mark"])


def discard(files: Files, path: str, name: str, mark: str) -> None:
    """Delete a draft that will not be committed."""
    files.delete(draft_path(path, name, mark))


def _tidy(files: Files, path: str, kind: str, entry: str, name: str) -> None:
    """Finish the moves of a draft that was committed. Delete a draft that never will be."""
    of_name, _, mark = entry.rpartition(".")
    found = _commit_of(files, path, of_name)
    if found is None and of_name != name and not is_stale(mark):
        return
    folder = f"{path}/{HIDDEN}/{kind}/{entry}"
    swept = f"{path}/{HIDDEN}/swept/{entry}"
    if found is None or found["mark"] != mark:
        # A slow try may commit this draft right now. Move the draft first: then that try can no longer commit.
        if kind == "drafts":
            files.move(folder, swept)
        found = _commit_of(files, path, of_name)
        if found is None or found["mark"] != mark:
            files.delete(swept)
            return
        folder = swept
    if folder == swept:
        files.move(swept, draft_path(path, of_name, mark))
    _publish(files, path, of_name, found)


def _publish(files: Files, path: str, name: str, found: dict[str, Any]) -> None:
    draft = draft_path(path, name, found["mark"])
    if files.exists(draft):
        for source, target in found["files"]:
            files.move(f"{draft}/{source}", f"{path}/{target}")
        files.delete(draft)


def _commit_path(path: str, name: str) -> str:
    return f"{path}/{HIDDEN}/written/{name}.json"


def _commit_of(files: Files, path: str, name: str) -> dict[str, Any] | None:
    text = files.read(_commit_path(path, name))
    return None if text is None else json.loads(text)


def _final_name(relative: str, name: str) -> str:
    """Return Spark's name of the file, with the output's name in place of the job's id. The result is unique."""
    folder, slash, file = relative.rpartition("/")
    renamed, count = _SPARKS_ID.subn(name, file, count=1)
    return f"{folder}{slash}{renamed if count else f'{name}-{file}'}"
