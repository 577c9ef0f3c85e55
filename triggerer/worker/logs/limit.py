"""Limits the size of a run's log on the disk: the beginning and the end stay, and the middle is freed.

The processes of a run write straight into the log file, so no other process can shorten their output. Instead, the
kernel frees the middle of the file ("punches a hole"). The other bytes keep their positions, so a reader can go on
following the log. A line before the hole says how many bytes were cut.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from functools import cache
from typing import Any, Final

_SMALLEST_BLOCK: Final = 4_096
_BLOCKS: Final = 64
"""A log of the greatest length has at least this number of blocks, see `_block_of`."""
_KEEP_SIZE_AND_PUNCH: Final = 0x01 | 0x02
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS)


class LogLimit:
    """Frees the middle of one log at each call of `enforce`, if the log is too long.

    About the first `max_bytes / 4` bytes of the log stay, and at least the last `max_bytes / 2` bytes. If the file
    system cannot free the middle of a file, only the beginning stays.

    Args:
        log: A descriptor of the log, opened for appending. The caller closes it after the last call of `enforce`.
        max_bytes: The most bytes that the log has on the disk after `enforce`.
    """

    def __init__(self, log: int, max_bytes: int) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._block = _block_of(max_bytes)
        self._head_ends = max_bytes // 4 // self._block * self._block
        self._tail_begins = self._head_ends
        hole = next_hole(log, self._head_ends)
        if hole is not None and hole[0] == self._head_ends:
            # An earlier attempt of the run has left this hole.
            self._tail_begins = hole[1]

    def enforce(self) -> None:
        """Free the middle of the log if the log is too long.

        Raises:
            OSError: The log cannot be cut, or the line about the cut cannot be written.
        """
        size = os.fstat(self._log).st_size
        if self._head_ends + size - self._tail_begins <= self._max_bytes:
            return
        begins = (size - self._max_bytes // 2) // self._block * self._block
        try:
            free(self._log, self._tail_begins, begins)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._cut_end(size)
        else:
            self._tail_begins = begins
            self._write_line(begins - self._head_ends)

    def _cut_end(self, size: int) -> None:
        """Keep only the beginning. Some file systems, such as NFS before 4.2, cannot free the middle of a file."""
        # The log itself has the number of bytes that were cut before, because an earlier attempt may have cut them.
        cut_before = self._read_line()
        os.ftruncate(self._log, self._head_ends)
        self._write_line(cut_before + size - self._head_ends)

    def _read_line(self) -> int:
        """Return the argument of the last `_write_line`, by any attempt; 0 if there was none."""
        size = len(cut_line(0, self._max_bytes))
        # The descriptor was opened for writing only. Open the file again.
        again = os.open(f"/proc/self/fd/{self._log}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.pread(again, size, self._head_ends - size)
        finally:
            os.close(again)
        found = re.match(rb"\ntriggerer: +([\d,]+) bytes", line)
        cut = 0 if found is None else int(found[1].replace(b",", b""))
        return cut - size if line == cut_line(cut, self._max_bytes) else 0

    def _write_line(self, cut: int) -> None:
        """Replace the last bytes of the beginning by the line that says how many bytes were cut.

        Args:
            cut: The number of bytes that were cut. The bytes that the line replaces are not counted.
        """
        size = len(cut_line(0, self._max_bytes))
        line = cut_line(cut + size, self._max_bytes)
        # The descriptor was opened for appending, so even `pwrite` would write to the end. Open the file again.
        again = os.open(f"/proc/self/fd/{self._log}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(again, line, self._head_ends - size)
        finally:
            os.close(again)


def _block_of(max_bytes: int) -> int:
    """Return a power of two. The log is cut at its multiples, which are also multiples of the file system's blocks.

    A file system can free only whole blocks, and overwrites the edges of other ranges with zeros, which readers would
    show. Its blocks may be larger than 4 KiB: up to 64 KiB on XFS and Btrfs, and 128 KiB or more on ZFS. `st_blksize`
    does not tell them: NFS answers with the size of its requests, and ZFS with the size of the block of a short file.
    So cut as coarsely as the log's length permits: at multiples of 4 MiB if the log may have 256 MiB.
    """
    return max(_SMALLEST_BLOCK, 1 << ((max_bytes // _BLOCKS).bit_length() - 1))


def cut_line(cut: int, max_bytes: int) -> bytes:
    """Return the line that marks where bytes were cut. The line's length does not depend on `cut`."""
    return (
        f"\ntriggerer: {cut:>19,} bytes were cut here, [logs] max_bytes is {max_bytes:,}\n".encode()
    )


def next_hole(descriptor: int, start: int) -> tuple[int, int] | None:
    """Return where the first hole at or after `start` begins and ends (exclusive); None if no hole is followed by data.

    If `start` is inside a hole, the returned hole begins at `start`. The function moves the file's read position.
    """
    size = os.fstat(descriptor).st_size
    if start >= size:
        return None
    try:
        first = os.lseek(descriptor, start, os.SEEK_HOLE)
        if first >= size:
            return None
        return first, os.lseek(descriptor, first, os.SEEK_DATA)
    except OSError as error:
        # ENXIO: no data follows the hole, or the file has become shorter.
        if error.errno in (errno.ENXIO, errno.EINVAL, *_UNSUPPORTED):
            return None
        raise


def free(descriptor: int, first: int, last: int) -> None:
    """Free the bytes of a file between two positions, which are multiples of the block size.

    Raises:
        OSError: The file system cannot free bytes in the middle of a file, or refuses.
    """
    if _libc().fallocate(descriptor, _KEEP_SIZE_AND_PUNCH, first, last - first):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return libc
