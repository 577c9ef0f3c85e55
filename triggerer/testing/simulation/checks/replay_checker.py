"""Checks replays of a log: each watcher reads all messages again, and re-emits each event once (rule 18)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from triggerer.testing.simulation.kernel.delivery import offset_of, plain_key

if TYPE_CHECKING:
    from triggerer.domain.watchers.lane_positions import ReplayRequest
    from triggerer.testing.simulation.checks.catching_up_checker import CatchingUpChecker, Identity
    from triggerer.testing.simulation.kernel.delivery import LaneOfBroker, Message, PositionRow


class ReplayChecker:
    """Records each stored rewind, the messages that are read after it, and the events that are re-emitted.

    Args:
        fail: Called with the broken rule and the details.
        catching_up: Receives the events that are not re-emitted.
        reemitted: Filled with the re-emitted events, under their ordinary keys.
    """

    def __init__(
        self,
        fail: Callable[[str, str], None],
        catching_up: CatchingUpChecker,
        reemitted: set[Identity],
    ) -> None:
        self._fail = fail
        self.lanes: Callable[[str], Sequence[LaneOfBroker]] = lambda _: []
        """The lanes of a topic."""
        self.rows: Mapping[tuple[int, int], PositionRow] = {}
        """The store's rows of positions, by watcher and lane."""
        self.requests: Mapping[int, ReplayRequest] = {}
        """The replays that are not done: the store's rows, by id."""
        self.deleted: Collection[int] = ()
        """The deleted watchers, whose requests were deleted with them."""
        self._catching_up = catching_up
        self._reemitted = reemitted
        self._counted = 0
        self._given: dict[tuple[int, str], int] = {}
        """By watcher and message, when a filter last got the message, as a number from `_count`."""
        self._reemitted_at: dict[tuple[int, str], int] = {}
        """By watcher and message, when the message's events were last re-emitted, as a number from `_count`."""
        self._rewound: dict[tuple[int, str, int], tuple[int, int, int]] = {}
        """By watcher, topic and lane: the lowest offset that the watcher was rewound to, the lane's end at the time of
        this rewind, and the rewind's number from `_count`.
        """
        self._reemissions: dict[tuple[int, str, int, int, int, int], int] = {}
        """By watcher, topic, lane, request, first offset and end: the `_count` number when the re-emission began."""

    def _count(self) -> int:
        """Return the next number, which is higher than the numbers of all earlier records."""
        self._counted += 1
        return self._counted

    def is_read_again(self, watcher: int, row: PositionRow) -> bool:
        """Whether the watcher was rewound and has not yet reached the end that the lane had then."""
        at = watcher, row.topic, row.lane
        ends = [asked[5] for asked in self._reemissions if asked[:3] == at]
        if at in self._rewound:
            ends.append(self._rewound[at][1])
        return row.offset < max(ends, default=0)

    def on_given(self, watcher: int, message: Message) -> None:
        """Record a message that a filter of the watcher gets, live or not."""
        self._given[watcher, message.key] = self._count()

    def on_row(self, watcher: int, row: PositionRow) -> None:
        """Record the stored row of a position."""
        at = watcher, row.topic, row.lane
        if row.rewound_to is not None and row.position == row.rewound_to:
            known, begin = self._rewound.get(at), self._asked_from(watcher, row)
            if known is None or (begin is not None and begin < known[0]):
                end = len(self.lanes(row.topic)[row.lane].messages)
                self._rewound[at] = row.offset if begin is None else begin, end, self._count()
        if row.reemit is not None:
            request, start, until = row.reemit
            lane = self.lanes(row.topic)[row.lane]
            asked = request, offset_of(lane, start), offset_of(lane, until)
            self._reemissions.setdefault((*at, *asked), self._count())

    def _asked_from(self, watcher: int, row: PositionRow) -> int | None:
        """Return the offset from which the watcher must read again; None if its replay is done.

        The stored position may be earlier than this offset, if an earlier message was outstanding at the rewind.
        """
        lane = self.lanes(row.topic)[row.lane]
        asked = [
            lane.starts[-1] if request.start is None else lane.find(request.start)
            for request in self.requests.values()
            if request.watcher_id == watcher
        ]
        return max(row.offset, min(asked)) if asked else None

    def on_stored(self, watcher: int, key: str, ordinal: int) -> None:
        """Check an event that is durable for the first time."""
        plain = plain_key(key)
        if watcher not in self.deleted and not self._may_derive(watcher, plain, key[len(plain) :]):
            self._fail("S4", f"watcher {watcher} re-emits an event under the wrong key {key}")
            return
        if plain == key:
            self._catching_up.on_stored(watcher, key)
            return
        self._reemitted_at[watcher, plain] = self._count()
        self._reemitted.add((watcher, plain, ordinal))

    def _may_derive(self, watcher: int, key: str, reemit: str) -> bool:
        """Whether an event may have this key.

        Args:
            key: The part of the event's key that must be the key of a message.
            reemit: The rest of the event's key, which must be empty unless a replay re-emits the message.
        """
        topic, *numbers = key.rsplit("/", 2)
        if len(numbers) != 2 or not all(map(str.isdigit, numbers)):
            return False
        lane, offset = map(int, numbers)
        if offset >= len(self.lanes(topic)[lane].messages):
            return False
        return not reemit or any(
            asked[:3] == (watcher, topic, lane)
            and reemit == f"#r{asked[3]}"
            and asked[4] <= offset < asked[5]
            for asked in self._reemissions
        )

    def find_missed(self, deleted: set[int]) -> str | None:
        """Return a text about the first message that a replay missed; None: no message was missed.

        A replay misses a message if the rewound watcher does not get it again, or does not re-emit
        its events.
        """
        for (watcher, topic, lane), (offset, end, since) in self._rewound.items():
            for message in self._read(watcher, topic, lane)[offset:end]:
                is_given = self._given.get((watcher, message.key), 0) >= since
                is_left_out = self._catching_up.is_left_out(watcher, message)
                is_excused = self._catching_up.is_excused(watcher, message.key)
                if watcher not in deleted and not (is_given or is_left_out or is_excused):
                    return f"watcher {watcher} was rewound, but did not get {message.key} again"
        for (watcher, topic, lane, _, start, until), since in self._reemissions.items():
            for message in self._read(watcher, topic, lane)[start:until]:
                is_reemitted = self._reemitted_at.get((watcher, message.key), 0) >= since
                if watcher not in deleted and not is_reemitted and self._is_due(watcher, message):
                    return f"watcher {watcher} did not re-emit the events of {message.key}"
        return None

    def _read(self, watcher: int, topic: str, lane: int) -> list[Message]:
        """Return the messages of a lane up to the watcher's position."""
        messages = self.lanes(topic)[lane].messages
        row = self.rows.get((watcher, lane))
        return messages if row is None or row.topic != topic else messages[: row.offset]

    def _is_due(self, watcher: int, message: Message) -> bool:
        """Whether the message yields events that the store accepts."""
        is_excused = self._catching_up.is_excused(watcher, message.key)
        return not is_excused and self._catching_up.derives(watcher, message.key)
