"""A task's next try does not begin while the application of an earlier try may still be at work."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.run_orders import order
from tests.unit.worker.submit.fake_places import serving
from triggerer.config import SparkSettings
from triggerer.domain.attempt_states import AttemptState
from triggerer.domain.launches import Launch
from triggerer.errors import RunFailed
from triggerer.worker.launchers import Absent, Ended, Handle, Running, Unknown
from triggerer.worker.submit import applications, following
from triggerer.worker.submit.applications import ApplicationSubmitter

APPLICATION = """
import pathlib, sys
marks = pathlib.Path(sys.argv[1])
number = len(list(marks.iterdir()))
(marks / str(number)).touch()
sys.exit(0 if number else "no orders")
"""


class Place:
    """A Connect server that returns `answers` in turn, and records how many tries had begun at each `stop`."""

    name = "connect"
    place = "sc://there"

    def __init__(self, marks: Path) -> None:
        self.marks = marks
        self.answers: list[Running | Ended | Absent | Unknown] = []
        self.tries_at_stops: list[int] = []

    def stop(self, handle: Handle) -> Running | Ended | Absent | Unknown:
        self.tries_at_stops.append(len(list(self.marks.iterdir())))
        return self.answers.pop(0)

    def find(self, tag: str, external_id: str | None = None) -> Running | Ended | Absent | Unknown:
        return self.answers.pop(0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    marks = tmp_path / "marks"
    marks.mkdir()
    place = Place(marks)
    monkeypatch.setattr(applications, "launcher_named", lambda name, settings: place)
    monkeypatch.setattr(following, "_UNKNOWN_EVERY_S", 0.0)
    monkeypatch.setattr(following, "_LOOK_EVERY_S", 0.0)
    return place


@pytest.fixture
def server() -> Iterator[int]:
    with serving(lambda *_: (200, {})) as port:
        yield port


class Scene:
    def __init__(
        self, place: Place, folder: Path, port: int, patience: timedelta = timedelta(seconds=60)
    ) -> None:
        self.place = place
        self.launches: list[Launch] = []
        self.waits: list[str | None] = []
        (folder / "a.py").write_text(APPLICATION)
        self._submitter = ApplicationSubmitter(
            SparkSettings(
                mode="connect", remote=f"sc://127.0.0.1:{port}", cluster_patience=patience
            ),
            folder,
            folder,
            order(7),
            {},
            (),
            self.launches.append,
            self.waits.append,
        )

    def submit(self) -> None:
        arguments = [str(self.place.marks)]
        self._submitter.submit(
            "a", "a.py", arguments=arguments, conf={}, packages=(), main_class=None
        )


@pytest.fixture
def scene(place: Place, tmp_path: Path, server: int) -> Scene:
    return Scene(place, tmp_path, server)


def test_a_failed_try_whose_server_does_not_answer_is_unknown_and_the_next_try_waits_for_its_end(
    scene: Scene,
) -> None:
    """In an earlier version, the next try began at once, while the failed try's application might still run."""
    place = scene.place
    place.answers = [Unknown("it does not answer")]
    with pytest.raises(RunFailed, match="no orders"):
        scene.submit()
    assert [one.state for one in scene.launches] == [AttemptState.RUNNING, AttemptState.UNKNOWN]
    assert scene.launches[-1].reason == "it does not answer"
    first = scene.launches[-1]
    still = Unknown("it does not answer")
    place.answers = [still, still, Ended(Handle(first.tag), AttemptState.KILLED, "1 operation")]
    del scene.launches[:]
    scene.submit()
    # All stops came after the first try and before the second.
    assert place.tries_at_stops == [1, 1, 1, 1]
    of_first = [one.state for one in scene.launches if one.tag == first.tag]
    assert of_first == [AttemptState.UNKNOWN, AttemptState.UNKNOWN, AttemptState.CANCELLED]
    (begun, over) = scene.waits
    assert begun is not None
    assert begun.startswith("the end of an earlier try's application ")
    assert over is None
    assert scene.launches[-1].state is AttemptState.SUCCESS
    assert scene.launches[-1].tag != first.tag


def test_a_try_that_has_ended_is_not_stopped_again(scene: Scene) -> None:
    scene.place.answers = [Ended(Handle("x"), AttemptState.LOST, "nothing under way")]
    with pytest.raises(RunFailed):
        scene.submit()
    assert [one.state for one in scene.launches] == [AttemptState.RUNNING, AttemptState.FAILED]
    scene.submit()
    assert scene.place.tries_at_stops == [1]
    assert scene.waits == []


def test_the_next_try_fails_if_nobody_can_tell_whether_the_try_before_has_ended(
    place: Place, tmp_path: Path, server: int
) -> None:
    scene = Scene(place, tmp_path, server, patience=timedelta(0))
    place.answers = [Unknown("it does not answer")] * 2
    with pytest.raises(RunFailed, match="no orders"):
        scene.submit()
    with pytest.raises(RunFailed, match="may still be at work, so the task is not tried again"):
        scene.submit()
    assert len(list(place.marks.iterdir())) == 1
    assert scene.launches[-1].state is AttemptState.UNKNOWN
    assert scene.waits[-1] is None
