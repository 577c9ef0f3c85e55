"""One call of a writer: its name, its mark, and whether it may commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from triggerer.errors import OutputRefused

Outcome = Literal["written", "was_there"]


@dataclass(frozen=True, slots=True)
class Writing:
    """One call of a writer.

    Args:
        name: The output's token, with the call's number appended if it is not the first for its target.
        try_mark: The mark of the task's try, see `marks`.
        call: The number of the call in its try.
        may_commit: Asks the service whether this attempt is still the run's current one.
    """

    name: str
    try_mark: str
    call: int
    may_commit: Callable[[], bool]

    @property
    def mark(self) -> str:
        """The text that tells this call from all others, in this try and in every other."""
        return f"{self.try_mark}_{self.call}"

    def require_current(self) -> None:
        """Refuse to go on in a former attempt.

        Raises:
            OutputRefused: The run has a later attempt, or has ended.
        """
        if not self.may_commit():
            raise OutputRefused(
                "this attempt of the run is no longer the current one, so it writes nothing",
                hint="triggerer runs show names the current one",
            )

    def outcome(self, found: str, target: str) -> Outcome:
        """Return the result of the call, by the mark of the call that wrote the output.

        Args:
            found: The mark that was found at the target.
            target: The target's name in the message.
        Raises:
            OutputRefused: An earlier call of this very try wrote it, under another name of the target. Its rows would
                pass for the rows of this call.
        """
        if found == self.mark:
            return "written"
        if found.startswith(f"{self.try_mark}_"):
            raise OutputRefused(
                f"this task has written to {target} already, by another name for it",
                hint="name a target in one way, so that its second write counts as another output",
            )
        return "was_there"


class Names:
    """Numbers the calls of one try by target, so that a second write to a target is another output."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._calls: Counter[Hashable] = Counter()
        self._lock = Lock()

    def next(self, target: Hashable) -> str:
        """Return the name of the next output for this target."""
        with self._lock:
            self._calls[target] += 1
            number = self._calls[target]
        return self._token if number == 1 else f"{self._token}-{number}"

    def identify(self, target: Hashable, as_target: Hashable) -> None:
        """Count the calls for a target under another identity, which it got by being created."""
        with self._lock:
            self._calls[as_target] += self._calls.pop(target)
