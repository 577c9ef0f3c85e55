"""What was seen of a URL, and what is to be remembered of that. Synchronous, without I/O."""

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
    """One answer: once all its items and those before it are settled, the next request may begin behind it."""

    validators: Validators | None
    cursor: Any
    unsettled: int = 0


@dataclass(slots=True, eq=False)
class Delivery:
    """An item on its way; the broker payload.

    Attributes:
        number: Grows with each item of a producer.
        version: For a URL that is one item: the number of its content since it is watched.
    """

    found: Found
    key: str
    round: Round
    number: int
    version: int | None
    seen_at: datetime
    """When it was first polled."""
    size: int = 0
    failures: int = 0


@dataclass(slots=True)
class Memory:
    """Of one URL.

    Items are remembered by their digests once they are settled, the latest `MOST_KNOWN` of them; those that are no
    longer in the answers give way first. What comes again after that has the same idempotency key, and makes no event.
    A URL that is one item (`is_document`) fires whenever its content is another than before, so also when an earlier
    one comes back. Its versions are numbered, and `incarnation` tells them from those of an earlier stream. A number is
    used for one content only: a successor has to know those that were given and not settled, since their events may be
    durable. So the state is stored before a version is delivered.
    """

    source: str
    """Part of all keys."""
    is_document: bool
    has_begun: bool = False
    validators: Validators | None = None
    """Of the last answer that is settled with all before it; so `cursor`."""
    cursor: Any = None
    incarnation: str = ""
    version: int = 0
    """Of the content that was settled last."""
    known: dict[str, None] = field(default_factory=dict)
    """The digests of what is settled, in that order. Of a document the last one alone."""
    _in_flight: dict[str, None] = field(default_factory=dict)
    _rounds: deque[Round] = field(default_factory=deque)
    _present: frozenset[str] = frozenset()
    _latest: str | None = None
    """The content that was delivered last, and its number."""
    _latest_version: int = 0
    _is_unsure: bool = False
    """Whether a predecessor delivered that, and nobody knows what became of it."""
    _numbers: int = 0

    @classmethod
    def restore(cls, source: str, state: Any, *, is_document: bool) -> Memory:
        """What a predecessor has stored; nothing if it is None, or of a version that is not known."""
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
            # Not in the states of releases before it was stored.
            if (delivered := state.get("delivered")) is not None:
                memory._latest_version, memory._latest = delivered
                memory._is_unsure = True
                # They are of an earlier content: "unchanged" would be that one, and has nothing to deliver.
                memory.validators = None
        if not memory.incarnation:
            memory.incarnation = uuid.uuid4().hex[:12]
        return memory

    def dump(self) -> dict[str, Any]:
        """As `restore` takes it."""
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

    # An answer

    def take(
        self, found: Iterable[Found], validators: Validators, cursor: Any, seen_at: datetime
    ) -> list[Delivery]:
        """Those of an answer that are new, in its order; they are in flight from now on."""
        found = tuple(found)
        answered = Round(validators, cursor)
        new = [self._deliver(one, answered, seen_at) for one in found if self._is_new(one)]
        self._present = frozenset(one.digest for one in found)
        answered.unsettled = len(new)
        if not new and self._rounds and not self._rounds[-1].unsettled:
            # An item that fails for long keeps the rounds behind it: those that say nothing must not grow.
            self._rounds.pop()
        self._rounds.append(answered)
        self._end_rounds()
        return new

    def has_news(self, found: Iterable[Found]) -> bool:
        """Whether any of it would be delivered."""
        return any(map(self._is_new, found))

    def skip(self, found: Iterable[Found], validators: Validators, cursor: Any) -> None:
        """Remember what an answer holds, without a delivery."""
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
            # What may be durable already is delivered as the same version.
            if not (self._is_unsure and one.digest == self._latest):
                self._latest_version += 1
            self._latest, self._is_unsure = one.digest, False
            version = self._latest_version
            key = f"{self.source}/{self.incarnation}/{version}/{one.digest}"
        self._in_flight[key if self.is_document else one.digest] = None
        return Delivery(one, key, answered, self._numbers, version, seen_at)

    # What became of it

    def dump_after(self, deliveries: Iterable[Delivery]) -> dict[str, Any]:
        """As `dump` will be once these, which are in flight, are settled."""
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
        """Its events are durable, or nobody can use it."""
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
            # A tenth at once: each look goes through all of them.
            surplus = len(self.known) - MOST_KNOWN + MOST_KNOWN // 10
            gone = [one for one in self.known if one not in self._present][:surplus]
            for one in gone:
                del self.known[one]
