"""Remembers which items of a URL were delivered and settled. Synchronous, without I/O."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from producers.http.fetching import Validators
from producers.http.reading import MOST_ITEMS, Found

_VERSION: Final = 1
MOST_KNOWN: Final = 2 * MOST_ITEMS


@dataclass(slots=True)
class Round:
    """One answer of the server, and how many of its items are not settled yet (see `Memory`).

    Once all items of this answer and of all earlier answers are settled, a restart uses the validators and the cursor
    of this answer.
    """

    validators: Validators | None
    cursor: Any
    unsettled: int = 0


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivered item; the broker payload.

    Attributes:
        number: The item's number in the order of first delivery.
        version: The number of the content's version, if the whole content is the URL's only item. None for an item of
            a list.
    """

    found: Found
    key: str
    round: Round
    number: int
    version: int | None
    seen_at: datetime
    """When the item was first polled."""
    size: int = 0
    failures: int = 0


@dataclass(slots=True)
class Memory:
    """Remembers the settled items of one URL, by their digests.

    - An item is settled once its events are stored, or once it was rejected.
    - Beyond `MOST_KNOWN` items, the memory forgets the oldest items that the latest answer lacks. If the server shows a
      forgotten item again, the item is delivered again under the same idempotency key.

    If the whole content is the only item (`is_document`), each change creates an event, even a change back:

    - Each version of the content has a number, which is part of its idempotency key. The number is stored before the
      version is delivered, so that a restarted process uses the same number.
    - The key also contains `incarnation`, a random string. If the stored state is deleted, the numbers begin again, and
      only the new `incarnation` makes the keys differ.
    """

    source: str
    """The beginning of all idempotency keys."""
    is_document: bool
    has_begun: bool = False
    validators: Validators | None = None
    """The validators of the newest answer up to which all items are settled. `cursor` is from the same answer."""
    cursor: Any = None
    incarnation: str = ""
    version: int = 0
    """The version that was settled last."""
    known: dict[str, None] = field(default_factory=dict)
    """The digests of settled items, in the order of settling; for a document only the last digest."""
    _in_flight: dict[str, None] = field(default_factory=dict)
    _rounds: deque[Round] = field(default_factory=deque)
    _present: frozenset[str] = frozenset()
    _latest: str | None = None
    """The digest of the version that was delivered last. The version's number is `_latest_version`."""
    _latest_version: int = 0
    _is_unsure: bool = False
    """True if an earlier process delivered the latest version. Then that version's events may or may not be stored."""
    _numbers: int = 0

    @classmethod
    def restore(cls, source: str, state: Any, *, is_document: bool) -> Memory:
        """Restore the stored state of an earlier stream; begin empty if `state` is None or has an unknown format."""
        memory = cls(source, is_document)
        if isinstance(state, dict) and state.get("v") == _VERSION:
            memory.has_begun = True
            memory.known = dict.fromkeys(state["known"])
            memory.cursor = state["cursor"]
            memory.version = memory._latest_version = state["version"]
            memory.incarnation = state["incarnation"]
            memory.validators = (
                None if state["validators"] is None else Validators(*state["validators"])
            )
            memory._latest = next(reversed(memory.known), None)
            if (delivered := state["delivered"]) is not None:
                memory._latest_version, memory._latest = delivered
                memory._is_unsure = True
                # The last version was delivered and not settled, and the stored validators are from the version before.
                # If the server shows that earlier version again, it would answer 304 to these validators, and the
                # change back would create no event.
                memory.validators = None
        if not memory.incarnation:
            memory.incarnation = uuid.uuid4().hex[:12]
        return memory

    def dump(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        validators = self.validators
        return {
            "v": _VERSION,
            "known": list(self.known),
            "cursor": self.cursor,
            "version": self.version,
            "incarnation": self.incarnation,
            "delivered": [self._latest_version, self._latest]
            if self._latest_version > self.version
            else None,
            "validators": None
            if validators is None
            else [validators.url, validators.etag, validators.last_modified],
        }

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    # Receiving an answer

    def take(
        self, found: Iterable[Found], validators: Validators, cursor: Any, seen_at: datetime
    ) -> list[Delivery]:
        """Return deliveries of an answer's new items, in order. The deliveries are in flight from now on."""
        found = tuple(found)
        answered = Round(validators, cursor)
        new = [self._deliver(one, answered, seen_at) for one in found if self._is_new(one)]
        self._present = frozenset(one.digest for one in found)
        answered.unsettled = len(new)
        if not new and self._rounds and not self._rounds[-1].unsettled:
            # Each poll adds a round. While an item of a round fails, this round and all later
            # rounds stay in memory. To save memory, drop the last round if all its items are
            # settled and the new round has no new items.
            self._rounds.pop()
        self._rounds.append(answered)
        self._end_rounds()
        return new

    def has_news(self, found: Iterable[Found]) -> bool:
        """Whether any of the items would be delivered."""
        return any(map(self._is_new, found))

    def skip(self, found: Iterable[Found], validators: Validators, cursor: Any) -> None:
        """Remember the items of an answer without delivering them."""
        found = tuple(found)
        self._present = frozenset(one.digest for one in found)
        for one in found:
            self._latest = one.digest
            self._remember(one.digest)
        self.validators, self.cursor = validators, cursor

    def _is_new(self, one: Found) -> bool:
        if self.is_document:
            return self._is_unsure or one.digest != self._latest
        return one.digest not in self.known and one.digest not in self._in_flight

    def _deliver(self, one: Found, answered: Round, seen_at: datetime) -> Delivery:
        self._numbers += 1
        version = None
        key = f"{self.source}/{one.digest}"
        if self.is_document:
            # An earlier process may have stored events for the latest version. If the content is still that version,
            # the version keeps its number and so its key, and no second event is created.
            if not (self._is_unsure and one.digest == self._latest):
                self._latest_version += 1
            self._latest, self._is_unsure = one.digest, False
            version = self._latest_version
            key = f"{self.source}/{self.incarnation}/{version}/{one.digest}"
        self._in_flight[key if self.is_document else one.digest] = None
        return Delivery(one, key, answered, self._numbers, version, seen_at)

    # Settling

    def dump_after(self, deliveries: Iterable[Delivery]) -> dict[str, Any]:
        """Return what `dump` would return if these deliveries, which are in flight, were settled."""
        copies = [copy(one) for one in self._rounds]
        rounds = {id(one): again for one, again in zip(self._rounds, copies, strict=True)}
        after = replace(
            self,
            known=dict(self.known),
            _in_flight=dict(self._in_flight),
            _rounds=deque(copies),
        )
        for delivery in deliveries:
            after.settle(
                replace(delivery, round=rounds.get(id(delivery.round)) or copy(delivery.round))
            )
        return after.dump()

    def settle(self, delivery: Delivery) -> None:
        """Record that an item's events are stored, or that it was rejected."""
        digest = delivery.found.digest
        self._in_flight.pop(delivery.key if self.is_document else digest, None)
        if delivery.version is None:
            self._remember(digest)
        elif delivery.version > self.version:
            self.version = delivery.version
            self._remember(digest)
        delivery.round.unsettled -= 1
        self._end_rounds()

    def _end_rounds(self) -> None:
        while self._rounds and not self._rounds[0].unsettled:
            ended = self._rounds.popleft()
            self.validators, self.cursor = ended.validators, ended.cursor

    def _remember(self, digest: str) -> None:
        if self.is_document:
            self.known = {digest: None}
            return
        self.known[digest] = None
        if len(self.known) > MOST_KNOWN:
            # Forget a tenth more than needed, so that this search through all known items is rare.
            surplus = len(self.known) - MOST_KNOWN + MOST_KNOWN // 10
            gone = [one for one in self.known if one not in self._present][:surplus]
            for one in gone:
                del self.known[one]
