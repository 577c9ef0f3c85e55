"""A launcher whose answers a test chooses."""

from __future__ import annotations

from collections.abc import Iterator

from triggerer.worker.launchers import Handle, Intent, Sighting


class Place:
    """A launcher that answers as the test says, and writes down what it was asked.

    The code under test looks for former launches and stops them. It must neither launch nor watch, so `launch` and
    `watch` raise.
    """

    name = "place"
    place: str | None = "there"

    def __init__(self, *answers: Sighting, can_reattach: bool = False) -> None:
        self.answers = list(answers)
        self.can_reattach = can_reattach
        self.asked: list[str] = []

    def launch(self, intent: Intent) -> Handle:
        raise AssertionError("nothing may be launched")

    def find(self, tag: str, external_id: str | None = None) -> Sighting:
        self.asked.append("find")
        return self._answer()

    def stop(self, handle: Handle) -> Sighting:
        self.asked.append(f"stop {handle.external_id}")
        return self._answer()

    def watch(self, handle: Handle) -> Iterator[Sighting]:
        raise AssertionError("nothing may be watched")

    def _answer(self) -> Sighting:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
