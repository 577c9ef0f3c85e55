"""Moves files that match patterns out of a directory, so that each appearance fires once. Blocking I/O, no state.

1. A marker is created in `.moving` in the same directory. The marker is a symbolic link, because a link is created
   atomically. Its name is the appearance's id, and its text is the file's inode and new path. The link is not followed.
2. The file is renamed to its new path.
3. The marker is renamed: `.moved` is added to its name.
4. The file's event is created. Once the event is durable, the marker is deleted.

After a crash, the next scan finds the marker:

- The file was moved: the scan creates the event again with the marker's id. The store keeps one event per id, so no
  file is lost, and no file fires twice.
- The file was not moved: the move is repeated with the same id. No event has this id yet, because the marker lacks
  `.moved`.
- The marker has `.moved`, and the file is gone: the marker is deleted. Otherwise a later file with the same name and
  inode would be taken for the earlier file.

A move never overwrites a file. If the new name is free, an empty file first reserves the name (`O_EXCL`), and the
rename replaces only this empty file. If the new name is taken, the marker's id is added to the name.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from watchers.files.appeared import AppearedFile, SeenFile, seen_file
from watchers.files.claiming import REJECTED, make_folder, named_with, sync

MOVING: Final = ".moving"
_LONGEST_SUFFIX: Final = 20
_STALE_NS: Final = 60 * 1_000_000_000
"""A marker whose file was not moved is deleted at this age."""
_MOVED: Final = ".moved"
"""The end of the name of a marker whose file was moved."""


@dataclass(slots=True)
class Pending:
    """The markers of a directory."""

    moved: list[AppearedFile] = field(default_factory=list)
    """The files that were moved and not released, in the order of moving."""
    intended: dict[str, str] = field(default_factory=dict)
    """The ids of moves that were not completed, by the marker's text."""


def move(
    directory: Path, move_to: Path, files: Iterable[SeenFile], intended: Mapping[str, str]
) -> tuple[list[AppearedFile], dict[str, OSError]]:
    """Move these files, in order. Return them with their new paths, and the failures by name.

    A file that was deleted or changed after the scan is skipped. Until a moved file is released, `pending` finds it
    again, even after a power failure.

    Args:
        intended: The ids of interrupted moves, see `Pending`. A repeated move uses the old id and its marker. With a
            second marker, the file would fire twice.
    Raises:
        OSError: A folder or a marker cannot be created, and no file was moved. Or the moves could not be synced to the
            disk; `pending` then finds the files that were moved.
    """
    markers = directory / MOVING
    make_folder(markers, like=directory)
    if not move_to.is_dir():
        move_to.parent.mkdir(parents=True, exist_ok=True)
        make_folder(move_to, like=directory)
    marked: list[tuple[SeenFile, str]] = []
    failures: dict[str, OSError] = {}
    for file in files:
        if file.is_link:
            failures[file.name] = OSError(
                'it is a symbolic link: only claim="remember" accepts links'
            )
            continue
        text = f"{file.inode}:{move_to / file.name}"
        if (id_ := intended.get(text)) is None:
            # The id begins with the time, so that `pending` returns files in the order of moving.
            id_ = f"{time.time_ns()}-{secrets.token_hex(8)}"
            os.symlink(text, markers / id_)  # noqa: PTH211  (the link has no target)
        marked.append((file, id_))
    sync(markers)
    interrupted = set(intended.values())
    moved: list[AppearedFile] = []
    for file, id_ in marked:
        try:
            target = _move_one(directory, move_to, file, id_)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                failures[file.name] = error
            target = None
        if target is not None:
            _mark_moved(markers, id_)
            moved.append(
                AppearedFile(file.name, target, file.size_bytes, file.modified_ns, id_, None)
            )
        elif id_ not in interrupted:
            # The marker of an interrupted move stays. On a network file system, the earlier process may hang in the
            # rename, and the rename may have been done just now. `pending` then finds the file by the marker.
            (markers / id_).unlink(missing_ok=True)
    for folder in (move_to, directory, markers):
        sync(folder)
    return moved, failures


def _move_one(directory: Path, move_to: Path, file: SeenFile, id_: str) -> Path | None:
    """Rename a file without replacing another; return the new path, or None if the file has changed since the scan."""
    source, target = directory / file.name, move_to / file.name
    status = source.lstat()
    if not stat.S_ISREG(status.st_mode) or seen_file(file.name, status, is_link=False) != file:
        return None
    is_reserved = True
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        # The plain name exists already, so add the id, which makes the name unique.
        target, is_reserved = _unique(target, id_), False
    try:
        source.rename(target)
    except OSError:
        # On NFS a rename may fail although the file was moved, see "Bugs" in rename(2). Then `target` is the file, and
        # must not be deleted.
        if _is_at(target, status):
            return target
        if is_reserved:
            target.unlink(missing_ok=True)
        raise
    return target


def _is_at(path: Path, file: os.stat_result) -> bool:
    """Return whether this file is at this path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), file)
    return False


def _unique(path: Path, id_: str) -> Path:
    """Return the path with the id before its suffix, in a name that is not too long."""
    stem, suffix = path.stem, path.suffix
    if len(suffix) > _LONGEST_SUFFIX:
        stem, suffix = path.name, ""
    return path.with_name(named_with(stem, f".{id_}{suffix}"))


def pending(directory: Path) -> Pending:
    """Return the files that were moved and not released, and the moves that were interrupted.

    The markers of all streams of the directory are read. After a change of `move_to` or `poke_interval`, the files that
    the earlier stream moved fire for the new stream.

    If a file was moved and is gone, its marker is deleted at once. If a file was not moved, its marker is deleted after
    a minute: until then another stream may be about to move the file.

    Raises:
        OSError: The markers cannot be read or written.
    """
    found = Pending()
    markers = directory / MOVING
    is_changed = False
    for name in _names(markers):
        marker = markers / name
        id_ = name.removesuffix(_MOVED)
        try:
            text = os.fspath(marker.readlink())
            number, path = text.split(":", 1)
            inode = int(number)
        except (OSError, ValueError):
            continue  # released meanwhile, or not a marker
        file = _find(Path(path), inode, id_)
        if file is not None:
            found.moved.append(file)
            if name == id_:
                # The process died after the move of the file, and before the marker was renamed.
                _mark_moved(markers, id_)
                is_changed = True
        elif name != id_ or _age_ns(id_) > _STALE_NS:
            marker.unlink(missing_ok=True)
        else:
            found.intended[text] = id_
    if is_changed:
        sync(markers)
    return found


def _mark_moved(markers: Path, id_: str) -> None:
    """Record in the marker's name that the file was moved, so that its id is used for no other file.

    Errors are ignored, because the file was moved and has to fire. A marker that cannot be renamed cannot be deleted
    either, and `release` reports this.
    """
    with suppress(OSError):
        (markers / id_).rename(markers / f"{id_}{_MOVED}")


def _names(markers: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return sorted(os.listdir(markers))  # noqa: PTH208  (names, not paths)
    return []


def _find(plain: Path, inode: int, id_: str) -> AppearedFile | None:
    for path, wanted in ((_unique(plain, id_), None), (plain, inode)):
        with suppress(FileNotFoundError, NotADirectoryError):
            status = path.lstat()
            # At the plain name, compare the inode. An earlier file of this name may be there, or the empty file that
            # reserves the name.
            if wanted in (None, status.st_ino):
                return AppearedFile(plain.name, path, status.st_size, status.st_mtime_ns, id_, None)
    return None


def _age_ns(id_: str) -> int:
    made_ns = id_.partition("-")[0]
    return time.time_ns() - int(made_ns) if made_ns.isdecimal() else 0


def release(directory: Path, file: AppearedFile) -> None:
    """Delete the marker of a file whose event is durable. The file stays where it is."""
    for name in (f"{file.key}{_MOVED}", file.key):
        (directory / MOVING / name).unlink(missing_ok=True)


def reject(directory: Path, file: AppearedFile) -> Path:
    """Move a rejected file into `.rejected` in the directory, and delete its marker. Return the file's new path.

    Raises:
        FileNotFoundError: The file no longer exists.
        OSError: The file cannot be moved.
    """
    folder = directory / REJECTED
    make_folder(folder, like=directory)
    aside = folder / named_with(file.name, f".{file.key}")
    file.path.rename(aside)
    release(directory, file)
    return aside
