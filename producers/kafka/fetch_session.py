"""What a broker remembers of our fetches, so that a fetch names only what has changed since the one before (KIP-227).

A broker answers such a fetch with those partitions alone of which there is something new. Where messages come one by
one, a fetch and its answer are of one partition, however many are read.
Source: https://cwiki.apache.org/confluence/display/KAFKA/KIP-227%3A+Introduce+Incremental+FetchRequests+to+Increase+Partition+Scalability
"""

from __future__ import annotations

from typing import Any, Final

from producers.kafka.fetch_request import SessionFetch, WantedPartition, WantedTopics

_NO_SESSION: Final = 0
_FIRST: Final = 0
"""The epoch of a fetch that names all, and asks for a session. It ends the one whose id it has."""
_WITHOUT: Final = -1
"""The epoch of a fetch that asks for no session."""
_LAST_EPOCH: Final = 2**31 - 1
_SESSION_NOT_FOUND: Final = 70


class FetchSession:
    """Of one broker. Its fetches go out one at a time, each made by `next` and followed by `note` or `reset`."""

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _FIRST
        self._known: dict[tuple[bytes, int], WantedPartition] = {}

    def next(self, wanted: WantedTopics) -> SessionFetch:
        """Return what is to be sent in order to be given messages of these partitions."""
        if self._epoch == _FIRST:
            if self._id == _NO_SESSION and sum(map(len, wanted.values())) == 1:
                # It would be named each time that there is something new, so there is nothing to remember.
                return SessionFetch(_NO_SESSION, _WITHOUT, wanted, {})
            self._known = _by_place(wanted)
            return SessionFetch(self._id, _FIRST, wanted, {})
        before, self._known = self._known, _by_place(wanted)
        changed: WantedTopics = {}
        for (topic_id, _), partition in self._known.items() - before.items():
            changed.setdefault(topic_id, []).append(partition)
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, number in before.keys() - self._known.keys():
            forgotten.setdefault(topic_id, []).append(number)
        return SessionFetch(self._id, self._epoch, changed, forgotten)

    def note(self, sent: SessionFetch, response: Any) -> None:
        """Take what the broker has answered: the session goes on, begins, or is not there."""
        if sent.epoch == _WITHOUT:
            return
        if response.error_code:
            self.reset(is_gone=response.error_code == _SESSION_NOT_FOUND)
        elif sent.epoch == _FIRST:
            # Zero where it has too many sessions already; then the next fetch asks again.
            self._id = response.session_id
            self._epoch = 1 if self._id != _NO_SESSION else _FIRST
        elif response.session_id != self._id:
            self.reset(is_gone=True)
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def reset(self, *, is_gone: bool = False) -> None:
        """Name all partitions in the next fetch: the broker may not have heard the last one, or was not heard.

        Args:
            is_gone: It has no such session; otherwise it drops the one that it may have.
        """
        self._epoch = _FIRST
        if is_gone:
            self._id = _NO_SESSION


def _by_place(topics: WantedTopics) -> dict[tuple[bytes, int], WantedPartition]:
    return {
        (topic_id, partition.partition): partition
        for topic_id, partitions in topics.items()
        for partition in partitions
    }
