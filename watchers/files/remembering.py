"""Remembers which files of a directory have fired for which patterns, in one small JSON value. No I/O."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any, Final

from triggerer.errors import BrokerRefused
from watchers.files.appeared import AppearedFile, SeenFile

_SIZE: Final = 8
"""The bytes of a file's digest. Two of 100,000 files have equal digests with a probability of 1 in 3,000 million."""
_MOST: Final = 90_000
"""The most files. A file that fired for two patterns counts twice. The store accepts 1 MiB: about 11 bytes per file."""


class Memory:
    """The files that have fired, by pattern. Name, inode, size and time of modification identify a file.

    Args:
        directory: The directory, for error texts and the paths of files.
        value: The result of `dump`; None: nothing is remembered yet.
    """

    def __init__(self, directory: Path, value: Any) -> None:
        self._directory = directory
        self._known: dict[str, set[bytes]] = {}
        self._unforgotten: Set[bytes] | None = None
        """The digests of the last scan, if that scan found no known file, so that nothing was forgotten."""
        for pattern, digests in (value or {"patterns": {}})["patterns"].items():
            raw = base64.b64decode(digests)
            self._known[pattern] = {raw[at : at + _SIZE] for at in range(0, len(raw), _SIZE)}

    def new_for(self, file: SeenFile, patterns: Iterable[str]) -> frozenset[str]:
        """Return the patterns for which the file has not fired."""
        digest = _digest(_key(file), file.name)
        return frozenset(
            pattern for pattern in patterns if digest not in self._known.get(pattern, ())
        )

    def add(self, file: AppearedFile) -> None:
        """Remember that a file has fired for its patterns, or was rejected by their filters."""
        digest = _digest(file.key, file.name)
        for pattern in file.patterns or ():
            self._known.setdefault(pattern, set()).add(digest)
        if self._unforgotten is not None and digest in self._unforgotten:
            # The last scan found this file, so the scan read the directory and not an empty mount point. The files that
            # the scan did not find are gone.
            self.forget_all_but(self._unforgotten)

    def forget_all_but(self, there: Set[bytes]) -> None:
        """Forget the files that a scan did not find. If the scan found no known file at all, forget nothing.

        Such a scan may have read an empty mount point, because the directory's volume is unmounted. Forgotten files
        would all fire again when the volume is back.

        Args:
            there: The digests of the files that the scan found.
        """
        if all(known.isdisjoint(there) for known in self._known.values()):
            self._unforgotten = there
            return
        self._unforgotten = None
        self._known = {
            pattern: kept for pattern, known in self._known.items() if (kept := known & there)
        }

    def dump(self) -> dict[str, Any]:
        """Return the memory as JSON.

        Raises:
            BrokerRefused: There are more files than the store accepts in a value.
        """
        count = sum(map(len, self._known.values()))
        if count > _MOST:
            raise BrokerRefused(
                f"{count} files of the directory {self._directory} have fired, and {_MOST} can be remembered",
                hint='take old files away, or write claim="move"',
            )
        return {
            "patterns": {
                pattern: base64.b64encode(b"".join(sorted(known))).decode()
                for pattern, known in sorted(self._known.items())
            }
        }


def digests_of(files: Iterable[SeenFile]) -> Set[bytes]:
    """Return the digests by which the memory identifies these files."""
    return {_digest(_key(file), file.name) for file in files}


def appeared(directory: Path, file: SeenFile, patterns: frozenset[str]) -> AppearedFile:
    """Return a file that fires for these patterns, and stays in place."""
    path = directory / file.name
    return AppearedFile(file.name, path, file.size_bytes, file.modified_ns, _key(file), patterns)


def _key(file: SeenFile) -> str:
    return f"{file.inode}-{file.size_bytes}-{file.modified_ns}"


def _digest(key: str, name: str) -> bytes:
    return hashlib.blake2b(os.fsencode(f"{key}/{name}"), digest_size=_SIZE).digest()
