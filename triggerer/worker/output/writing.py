"""One call of a writer: the output's name, the call's mark, and whether the call may commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from triggerer.errors import OutputRefused
from triggerer.worker.output.marks import are_of_one_try

Outcome = Literal["written", "was_there"]


@dataclass(frozen=True, slots=True)
class Writing:
    """One call of a writer.

    Args:
        name: The output's token. In the second call of a try for the same target, `-2` follows the token, and so on.
        mark: The text that identifies this call among all calls of all tries, see `marks`.
        may_commit: Asks the service whether this attempt is still the run's current one.
    """

    name: str
    mark: str
    may_commit: Callable[[], bool]

    def require_current(self) -> None:
        """Raise an error if this attempt is no longer the run's current one.

        Raises:
            OutputRefused: The run has a later attempt, or has ended.
        """
        if not self.may_commit():
            raise OutputRefused(
                "this attempt of the run is no longer the current one, so it writes nothing",
                hint="to see the current attempt, use: triggerer runs show",
            )

    def outcome(self, found: str, target: str) -> Outcome:
        """Return `written` if this call wrote the output, and `was_there` if an earlier try did.

        Args:
            found: The mark that was found at the target.
            target: The target's name in the message.
        Raises:
            OutputRefused: An earlier call of this try wrote to the same target under another name,
                so the rows of this call were not written. `Names` counts calls by the target's
                name, so both calls got one output name.
        """
        if found == self.mark:
            return "written"
        if are_of_one_try(found, self.mark):
            raise OutputRefused(
                f"this task has written to {target} already, under another name",
                hint="use one name for each target, so that a second write to it counts as another output",
            )
        return "was_there"


class Names:
    """Counts the calls of one try for each target, so that a second write to a target is another output."""

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
