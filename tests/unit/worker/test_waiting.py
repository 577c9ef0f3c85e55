"""Reports about a run that waits for its cluster, and waits that are not reported."""

import queue
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from triggerer.domain.attempts import Wait
from triggerer.worker.cluster_wait import ClusterWatch

NOTHING = timedelta(0)
LONG = timedelta(hours=1)


class Cluster:
    """Answers each look with the next item of `answers`."""

    def __init__(self) -> None:
        self.answers: queue.Queue[str | Exception | None] = queue.Queue()
        self.looked = threading.Semaphore(0)

    def why_waiting(self) -> str | None:
        self.looked.release()
        answer = self.answers.get(timeout=10)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def say(self, *answers: str | None) -> None:
        """Let the watch look once per answer, and wait until it has handled them all."""
        for answer in answers:
            self.looked.acquire(timeout=10)
            self.answers.put(answer)
        # The next look begins after the last answer was handled.
        self.looked.acquire(timeout=10)
        self.looked.release()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.answers.put(None)


def watch(cluster: Cluster, told: list[Wait], log: Path, patience: timedelta) -> ClusterWatch:
    return ClusterWatch(
        cluster.why_waiting, told.append, str(log), patience=patience, look_every_s=0.0
    )


def wait_for_the_watch_to_end() -> None:
    """Wait until no thread looks at the cluster."""
    for thread in threading.enumerate():
        if thread.name == "cluster-watch":
            thread.join(10)
            assert not thread.is_alive()


def lines(log: Path) -> list[str]:
    """Return the log without its times."""
    return [line.split(" ", 2)[2] for line in log.read_text().splitlines()] if log.exists() else []


def test_a_wait_is_told_when_it_begins_changes_and_is_over(
    cluster: Cluster, tmp_path: Path
) -> None:
    told: list[Wait] = []
    log = tmp_path / "run.log"
    before = datetime.now(UTC)
    with watch(cluster, told, log, NOTHING) as one:
        one.start()
        one.start()
        cluster.say(None, "cores", "cores")
        (begun,) = told
        assert begun.reason == "cores"
        assert before <= begun.since <= datetime.now(UTC)
        cluster.say("the master", None, None, "cores again")
        cluster.answers.put(None)
    assert told[1:3] == [Wait("the master", begun.since), Wait(None, begun.since)]
    assert [wait.reason for wait in told[3:]] == ["cores again"]
    assert lines(log) == [
        "WARNING triggerer.run: the run waits for cores",
        "WARNING triggerer.run: the run waits for the master",
        "INFO triggerer.run: the run waited for 0 s, and continues",
        "WARNING triggerer.run: the run waits for cores again",
    ]


def test_a_short_wait_is_not_worth_a_word(cluster: Cluster, tmp_path: Path) -> None:
    told: list[Wait] = []
    with watch(cluster, told, tmp_path / "run.log", LONG) as one:
        one.start()
        cluster.say("cores", "cores", None, "cores")
        cluster.answers.put(None)
    assert told == []
    assert lines(tmp_path / "run.log") == []


def test_a_run_that_needs_no_cluster_is_not_watched(cluster: Cluster, tmp_path: Path) -> None:
    with watch(cluster, [], tmp_path / "run.log", NOTHING):
        pass
    assert not cluster.looked.acquire(blocking=False)


def test_a_look_that_the_run_outlives_says_nothing_any_more(
    cluster: Cluster, tmp_path: Path
) -> None:
    told: list[Wait] = []
    with watch(cluster, told, tmp_path / "run.log", NOTHING) as one:
        one.start()
        assert cluster.looked.acquire(timeout=10)
    cluster.answers.put("cores")
    wait_for_the_watch_to_end()
    assert told == []
    assert lines(tmp_path / "run.log") == []


def test_a_session_that_died_is_not_asked_again_until_there_is_another(
    cluster: Cluster, tmp_path: Path
) -> None:
    told: list[Wait] = []
    with watch(cluster, told, tmp_path / "run.log", NOTHING) as one:
        one.start()
        cluster.say("cores")
        assert cluster.looked.acquire(timeout=10)
        cluster.answers.put(ConnectionError("the JVM is gone"))
        wait_for_the_watch_to_end()
        assert told.pop().reason is None
        assert told.pop().reason == "cores"
        assert not cluster.looked.acquire(blocking=False)
        # The task's next try has opened another session.
        one.start()
        cluster.say("cores")
        cluster.answers.put(None)
    assert [wait.reason for wait in told] == ["cores"]
