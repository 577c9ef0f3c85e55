"""A stream of Hadoop that fails, as an object store's upload may."""

from __future__ import annotations

import pytest

from triggerer.worker.output import hadoop_files


class BrokenStream:
    is_closed = False

    def write(self, data: bytearray) -> None:
        raise OSError("the task's time is up")

    def close(self) -> None:
        self.is_closed = True


def test_an_upload_that_was_cut_short_is_not_ended() -> None:
    """An object with only a part of a commit's text would count as the commit, but no later try could read it."""
    stream = BrokenStream()
    with pytest.raises(OSError, match="time is up"):
        hadoop_files._write(stream, "a commit")  # noqa: SLF001
    assert not stream.is_closed
