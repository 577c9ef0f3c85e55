"""Takes files that appear out of a directory, so that each appearance is told from every other. Blocking I/O, no state.

A file is renamed to `.claimed/<name>/<id>` in the same directory before its event is made. The rename is atomic: one
appearance gets one id, which nothing gets again. Path, inode and times cannot tell appearances apart: `cp -p`,
`rsync -t` and `tar -x` set the time, and inodes are used again, at once for a hard link. The time of a file's status
(ctime) comes closest, but changes within one appearance too (`chmod`, another link that is deleted).

What is claimed stays until it is released. Whoever looks next finds it, with its id: after a crash, in another
instance, or as another watcher of the same file.
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
_FORMER: Final = "0_"
"""Begins the claims that keep the identity that releases without claims gave a file: device, inode and time."""
_LONGEST_NAME: Final = 255
"""Bytes of a file name, on all file systems that matter."""
_CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Of file systems that have no way to make a directory durable."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file that appeared, and was claimed."""

    path: Path
    """Where it appeared. It is not there any more; another may be."""
    claim: str
    """The id of this appearance: the name of the claimed file."""
    modified_ns: int
    size_bytes: int

    @property
    def claimed(self) -> Path:
        """Where its content is, until its event is durable."""
        return self.path.parent / CLAIMED / self.path.name / self.claim

    @property
    def idempotency_key(self) -> str:
        """Equal for one appearance only, and at each of its deliveries."""
        if self.claim.startswith(_FORMER):
            return f"{self.path}:{self.claim.removeprefix(_FORMER).replace('_', ':')}"
        return f"{self.path}#{self.claim}"


def list_names(directory: Path, only: str | None = None) -> set[str]:
    """Return the names of the files that are there, or are claimed. `only`: of this one, if it is there.

    Also of what cannot be looked at, as a link in a circle: `claim` says what is wrong with it.

    Raises:
        OSError: The directory cannot be read.
    """
    claims = directory / CLAIMED
    if only is not None:
        # A missing directory is an error, a missing file is not.
        directory.stat()
        is_there = _may_be((directory / only).is_file) or _may_be(_has_claims, directory, only)
        return {only} if is_there else set()
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries if _may_be(entry.is_file)}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(claims) as entries:
        names.update(e.name for e in entries if _may_be(_has_claims, directory, e.name))
    return names


def _may_be(ask: Callable[..., bool], *arguments: Any) -> bool:
    """Whether it is so, or nobody can tell. One file that cannot be looked at holds up no others."""
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


def claim(
    directory: Path, names: Iterable[str], *, opened_ns: int
) -> tuple[list[FoundFile], dict[str, OSError]]:
    """Claim the files of these names that are there; return them and those claimed before, and what failed, by name.

    Those of one name are in the order of their claims. What is returned stays claimed if the power fails. What failed
    may have been claimed; the next call tries again, or finds it.

    Args:
        opened_ns: When the stream was opened. Releases without claims knew a file by inode and time. What was there
            already, in a directory in which nothing was claimed yet, may have had its event from one that was killed
            before it deleted the file: it keeps that identity.
    """
    former_ns = opened_ns if not (directory / CLAIMED).exists() else 0
    found: list[FoundFile] = []
    failures: dict[str, OSError] = {}
    for name in sorted(names):
        path = directory / name
        try:
            # Before the new one is claimed, which comes last even if the clock was set back.
            earlier = [_look(path, id_) for id_ in sorted(_claims(directory, name))]
            found += [file for file in earlier if file is not None]
            if (new := _claim(path, former_ns)) is not None:
                found.append(new)
        except FileNotFoundError:
            pass  # gone since it was listed, or claimed by somebody else
        except OSError as error:
            failures[name] = error
    return found, failures


def _claim(path: Path, former_ns: int) -> FoundFile | None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    if status.st_ctime_ns < former_ns:
        new = f"{_FORMER}{status.st_dev}_{status.st_ino}_{status.st_mtime_ns}"
    else:
        # Time first: claims are delivered in the order in which they were made.
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
    """Make a folder, unless it is there, as open as `like` is: in `/tmp` other users claim files too.

    Raises:
        NotADirectoryError: There is something else of that name.
        OSError: The folder cannot be made.
    """
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(stat.S_IMODE(like.stat().st_mode))
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync(directory: Path) -> None:
    """Make the names in a directory durable, where its file system has a way to do so.

    Raises:
        OSError: They could not be written.
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
    """Return a claimed file; None if it is gone. `linked`: what `path` led to if the file is a symbolic link."""
    file = FoundFile(path, id_, 0, 0)
    try:
        status = file.claimed.lstat()
        if stat.S_ISLNK(status.st_mode):
            # A relative link leads nowhere from here.
            status = linked or status
    except FileNotFoundError:
        return None
    return FoundFile(path, id_, status.st_mtime_ns, status.st_size)


def delete(found: FoundFile) -> None:
    """Delete a claimed file: its event is durable.

    Raises:
        FileNotFoundError: It is gone already.
        OSError: It cannot be deleted.
    """
    found.claimed.unlink()
    _remove_if_empty(found.claimed.parent)


def set_aside(found: FoundFile) -> Path:
    """Move a claimed file that was rejected into `.rejected`, which no scan reads; return where it is now.

    Raises:
        FileNotFoundError: It is gone already.
        OSError: It cannot be moved.
    """
    folder = found.path.parent / REJECTED
    folder.mkdir(exist_ok=True)
    # The claim's id keeps a file of the same name that was rejected before.
    aside = folder / named_with(found.path.name, f".{found.claim}")
    found.claimed.rename(aside)
    _remove_if_empty(found.claimed.parent)
    return aside


def named_with(name: str, end: str) -> str:
    """Return the name with this end, cut where both together are too long for a file system."""
    raw, tail = os.fsencode(name), os.fsencode(end)
    if len(raw) + len(tail) <= _LONGEST_NAME:
        return name + end
    # A cut character is left out.
    return raw[: max(0, _LONGEST_NAME - len(tail))].decode(errors="ignore") + end


def _remove_if_empty(folder: Path) -> None:
    # Somebody may have claimed another, or removed it. The folder above it stays: it says that files are claimed here.
    with suppress(OSError):
        folder.rmdir()
