"""What must hold of watchers of a log that somebody sets back: all is read again, and made again once (rule 18)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from triggerer.testing.simulation.kernel.delivery import offset_of, plain_key

if TYPE_CHECKING:
    from triggerer.domain.watchers.lane_positions import ReplayRequest
    from triggerer.testing.simulation.checks.catching_up_checker import CatchingUpChecker, Identity
    from triggerer.testing.simulation.kernel.delivery import LaneOfBroker, Message, PositionRow


class ReplayChecker:
    """Notes which places were stored since somebody asked, and what was given and made again since.

    Args:
        fail: Called with the rule that was broken, and how.
        catching_up: Is told what is made again as if it were made for the first time.
        made_again: Filled with what was made again, as if it had its ordinary key.
    """

    def __init__(
        self,
        fail: Callable[[str, str], None],
        catching_up: CatchingUpChecker,
        made_again: set[Identity],
    ) -> None:
        self._fail = fail
        self.lanes: Callable[[str], Sequence[LaneOfBroker]] = lambda _: []
        """Of a topic."""
        self.rows: Mapping[tuple[int, int], PositionRow] = {}
        """By watcher and lane, where it stands: the rows of the store."""
        self.requests: Mapping[int, ReplayRequest] = {}
        """What somebody has asked for, and is not done: the rows of the store."""
        self.deleted: Collection[int] = ()
        """Watchers whose requests went with them."""
        self._catching_up = catching_up
        self._made_again = made_again
        self._counted = 0
        self._given: dict[tuple[int, str], int] = {}
        """By watcher and message, when a filter was given it last, in the order of what is noted here."""
        self._made: dict[tuple[int, str], int] = {}
        """By watcher and message, when an event was made again last."""
        self._rewound: dict[tuple[int, str, int], tuple[int, int, int]] = {}
        """By watcher, topic and lane: to where it was set back furthest, where the lane ended then, and when."""
        self._reemissions: dict[tuple[int, str, int, int, int, int], int] = {}
        """By watcher, topic, lane, request, first and last offset of what is to be made again, since when."""

    def _count(self) -> int:
        self._counted += 1
        return self._counted

    def is_read_again(self, watcher: int, row: PositionRow) -> bool:
        """Whether the watcher was set back, and its place lies before where the lane ended then."""
        at = watcher, row.topic, row.lane
        ends = [asked[5] for asked in self._reemissions if asked[:3] == at]
        if at in self._rewound:
            ends.append(self._rewound[at][1])
        return row.offset < max(ends, default=0)

    def on_given(self, watcher: int, message: Message) -> None:
        """A filter of the watcher's is given a message, live or not."""
        self._given[watcher, message.key] = self._count()

    def on_row(self, watcher: int, row: PositionRow) -> None:
        """Its place was stored."""
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
        """From which offset on it is to be given what lies behind its place; None: its request is done.

        Its place may lie before that: there is what was outstanding then, which it need not be given again.
        """
        lane = self.lanes(row.topic)[row.lane]
        asked = [
            lane.starts[-1] if request.start is None else lane.find(request.start)
            for request in self.requests.values()
            if request.watcher_id == watcher
        ]
        return max(row.offset, min(asked)) if asked else None

    def on_stored(self, watcher: int, key: str, ordinal: int) -> None:
        """An event of a message is durable for the first time."""
        plain = plain_key(key)
        if watcher not in self.deleted and not self._may_derive(watcher, plain, key[len(plain) :]):
            self._fail("S4", f"an event of watcher {watcher} is made again under the key {key}")
            return
        if plain == key:
            self._catching_up.on_stored(watcher, key)
            return
        self._made[watcher, plain] = self._count()
        self._made_again.add((watcher, plain, ordinal))

    def _may_derive(self, watcher: int, key: str, reemit: str) -> bool:
        """Whether there is a message with this key, and, if it has another besides, somebody has asked for that."""
        topic, *place = key.rsplit("/", 2)
        if len(place) != 2 or not all(map(str.isdigit, place)):
            return False
        lane, offset = map(int, place)
        if offset >= len(self.lanes(topic)[lane].messages):
            return False
        return not reemit or any(
            asked[:3] == (watcher, topic, lane)
            and reemit == f"#r{asked[3]}"
            and asked[4] <= offset < asked[5]
            for asked in self._reemissions
        )

    def find_missed(self, deleted: set[int]) -> str | None:
        """What was to be read or made again, and was not; None: nothing."""
        for (watcher, topic, lane), (offset, end, since) in self._rewound.items():
            for message in self._read(watcher, topic, lane)[offset:end]:
                is_given = self._given.get((watcher, message.key), 0) >= since
                is_left_out = self._catching_up.is_left_out(watcher, message)
                is_excused = self._catching_up.is_excused(watcher, message.key)
                if watcher not in deleted and not (is_given or is_left_out or is_excused):
                    return f"watcher {watcher} was set back, and is not given {message.key} again"
        for (watcher, topic, lane, _, start, until), since in self._reemissions.items():
            for message in self._read(watcher, topic, lane)[start:until]:
                is_made = self._made.get((watcher, message.key), 0) >= since
                if watcher not in deleted and not is_made and self._is_due(watcher, message):
                    return f"watcher {watcher} was to make again what derives from {message.key}"
        return None

    def _read(self, watcher: int, topic: str, lane: int) -> list[Message]:
        """The messages of a lane, up to where a watcher stands."""
        messages = self.lanes(topic)[lane].messages
        row = self.rows.get((watcher, lane))
        return messages if row is None or row.topic != topic else messages[: row.offset]

    def _is_due(self, watcher: int, message: Message) -> bool:
        """Whether something derives from it that the store takes."""
        is_excused = self._catching_up.is_excused(watcher, message.key)
        return not is_excused and self._catching_up.derives(watcher, message.key)
