"""Claims files that appear in a directory, with a unique id for each appearance. Blocking I/O, no state.

Before a file's event is created, the file is claimed: renamed to `.claimed/<name>/<id>` in the same directory. The
rename is atomic, so each appearance gets one id. Until the file is deleted or rejected, each scan finds the file under
this id, even after a crash or in another instance.

Path, inode and times would not identify an appearance: `cp -p` sets the time, inodes are used again, hard links share
an inode, and `chmod` changes the ctime.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CLAIMED: Final = ".claimed"
REJECTED: Final = ".rejected"
_LONGEST_NAME: Final = 255
"""The most bytes of a file name, on all relevant file systems."""
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""The errors of file systems that cannot make a directory durable."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that has appeared and was claimed."""

    path: Path
    """The path where the file appeared. By now, another file may be there."""
    claim: str
    """The id of this appearance: the name of the claimed file."""
    modified_ns: int
    size_bytes: int

    @property
    def claimed(self) -> Path:
        """The path of the claimed file, until it is deleted or rejected."""
        return self.path.parent / CLAIMED / self.path.name / self.claim

    @property
    def idempotency_key(self) -> str:
        """A key that is unique for one appearance, and equal in all its deliveries."""
        return f"{self.path}#{self.claim}"


def list_names(directory: Path, only: str | None = None) -> set[str]:
    """Return the names of present and claimed files. With `only`, no other name is looked up.

    Files that cannot be examined, such as circular links, are included: `claim` reports the error.

    Raises:
        OSError: The directory cannot be read.
    """
    claims = directory / CLAIMED
    if only is not None:
        # Raise an error if the directory is missing. A missing file is no error.
        directory.stat()
        is_there = _may_be((directory / only).is_file) or _may_be(_has_claims, directory, only)
        return {only} if is_there else set()
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries if _may_be(entry.is_file)}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(claims) as entries:
        names.update(e.name for e in entries if _may_be(_has_claims, directory, e.name))
    return names


def _may_be(ask: Callable[..., bool], *arguments: Any) -> bool:
    """Return the result of `ask`, or True if it raises. The error of one file must not end the search for others."""
    try:
        return ask(*arguments)
    except OSError:
        return True


def _has_claims(directory: Path, name: str) -> bool:
    return any(_claims(directory, name))


def _claims(directory: Path, name: str) -> Iterator[str]:
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(directory / CLAIMED / name) as entries,
    ):
        yield from (entry.name for entry in entries)


def claim(directory: Path, names: Iterable[str]) -> tuple[list[FoundFile], dict[str, OSError]]:
    """Claim the present files with these names; return all claimed files, and the failures by name.

    Files of one name are in the order of their claims. Claims survive a power failure. A file among the failures may
    have been claimed nevertheless; the next call finds the claim, or tries again.
    """
    found: list[FoundFile] = []
    failures: dict[str, OSError] = {}
    for name in sorted(names):
        path = directory / name
        try:
            # Return earlier claims before a new claim. Do not sort the new claim with them: an id begins with the time,
            # so if the clock was set back, the new id would sort first.
            earlier = [_look(path, id_) for id_ in sorted(_claims(directory, name))]
            found += [file for file in earlier if file is not None]
            if (new := _claim(path)) is not None:
                found.append(new)
        except FileNotFoundError:
            pass  # deleted after the listing, or claimed by another process
        except OSError as error:
            failures[name] = error
    return found, failures


def _claim(path: Path) -> FoundFile | None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    # The id begins with the time, so that claims are delivered in the order of claiming.
    new = f"{time.time_ns()}-{secrets.token_hex(8)}"
    claims = path.parent / CLAIMED / path.name
    _make_folders(path.parent, claims)
    path.rename(claims / new)
    for changed in (claims, claims.parent, path.parent):
        sync(changed)
    return _look(path, new, linked=status)


def _make_folders(directory: Path, claims: Path) -> None:
    for folder in (claims.parent, claims):
        make_folder(folder, like=directory)


def make_folder(folder: Path, *, like: Path) -> None:
    """Create a folder with the mode of `like`, unless the folder exists.

    With this mode, other users who may write in the directory `like`, for example in `/tmp`, can claim files too.

    Raises:
        NotADirectoryError: The name belongs to something else.
        OSError: The folder cannot be made.
    """
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(stat.S_IMODE(like.stat().st_mode))
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync(directory: Path) -> None:
    """Write the names in a directory to the disk, so that new files and renames survive a power failure.

    On a file system that cannot do so, the call has no effect.

    Raises:
        OSError: The names could not be written.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def _look(path: Path, id_: str, linked: os.stat_result | None = None) -> FoundFile | None:
    """Return a claimed file; None if it was deleted. `linked` is the status of a symbolic link's target."""
    file = FoundFile(path, id_, 0, 0)
    try:
        status = file.claimed.lstat()
        if stat.S_ISLNK(status.st_mode):
            # The claim has moved the symbolic link. A relative link leads nowhere after the move, so use the target's
            # status from before the move.
            status = linked or status
    except FileNotFoundError:
        return None
    return FoundFile(path, id_, status.st_mtime_ns, status.st_size)


def delete(found: FoundFile) -> None:
    """Delete a claimed file, whose event is durable.

    Raises:
        FileNotFoundError: The file no longer exists.
        OSError: The file cannot be deleted.
    """
    found.claimed.unlink()
    _remove_if_empty(found.claimed.parent)


def set_aside(found: FoundFile) -> Path:
    """Move a rejected file into `.rejected`, which no scan reads; return its new path.

    Raises:
        FileNotFoundError: The file no longer exists.
        OSError: The file cannot be moved.
    """
    folder = found.path.parent / REJECTED
    make_folder(folder, like=found.path.parent)
    # The new name contains the claim's id, so that an earlier rejected file of this name is not replaced.
    aside = folder / named_with(found.path.name, f".{found.claim}")
    found.claimed.rename(aside)
    _remove_if_empty(found.claimed.parent)
    return aside


def named_with(name: str, end: str) -> str:
    """Return the name with this end, shortened if both together are too long for a file system."""
    raw, tail = os.fsencode(name), os.fsencode(end)
    if len(raw) + len(tail) <= _LONGEST_NAME:
        return name + end
    # If the cut is within a character of several bytes, this character is left out.
    return raw[: max(0, _LONGEST_NAME - len(tail))].decode(errors="ignore") + end


def _remove_if_empty(folder: Path) -> None:
    # Ignore errors: another process may have claimed a file of this name, or removed the folder.
    with suppress(OSError):
        folder.rmdir()
