"""Remembers, for one partition, which leader wrote the messages that were read. Synchronous, without I/O.

Each new leader of a partition has a higher epoch, and each batch of messages contains its leader's epoch. A broker uses
the epochs to find out whether its log was cut, that is, has lost its last messages (KIP-101, KIP-320):

1. The fetch contains the reader's position, and the epoch of the last message read.
2. The broker looks up where the messages of that epoch end in its own log.
3. If they end before the reader's position, the log was cut there.
"""

from __future__ import annotations

import struct
from typing import Final

_BATCH: Final = struct.Struct(">qiib")
"""The head of a record batch: its base offset, the length of the rest, the leader's epoch, and the format's version."""
_AFTER_LENGTH: Final = 12
_FIRST_WITH_EPOCHS: Final = 2
_MOST_ELECTIONS: Final = 16
"""The number of elections to remember. If a cut goes back further, its offset is found less exactly."""


class LeaderEpochs:
    """The epochs of one partition, each with the offset at which it was first seen. Epochs and offsets ascend."""

    __slots__ = ("_starts",)

    def __init__(self, offset: int, epoch: int | None) -> None:
        """Begin with the epoch of the message before `offset`, if it is known."""
        self._starts = [] if epoch is None else [(offset - 1, epoch)]

    def learn(self, batches: bytes | None) -> None:
        """Record the leader epochs of batches that a broker returned."""
        if not batches:
            return
        at, last = 0, self._starts[-1][1] if self._starts else -1
        # The answer may end within a batch, so stop at an incomplete head.
        while at + _BATCH.size <= len(batches):
            base, length, epoch, format_ = _BATCH.unpack_from(batches, at)
            if format_ < _FIRST_WITH_EPOCHS:
                return
            if epoch > last:
                self._starts.append((base, epoch))
                last = epoch
            at += _AFTER_LENGTH + length
        del self._starts[:-_MOST_ELECTIONS]

    def before(self, offset: int) -> int | None:
        """Return the epoch of the message before `offset`; None if it is not known."""
        for start, epoch in reversed(self._starts):
            if start < offset:
                return epoch
        return None

    def cut(self, epoch: int) -> None:
        """Forget the leaders after this epoch: the log no longer contains their messages."""
        self._starts = [known for known in self._starts if known[1] <= epoch]
