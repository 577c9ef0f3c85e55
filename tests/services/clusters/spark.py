"""Creates a home folder with an archive of Spark's classes, once for a test session.

With the archive (class data sharing of the JVM), a Spark session starts in half the time. The home folders of other
tests link this archive.
"""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

from tests.services.process import ServiceUnavailable
from tests.worker.spark.processes import start_python
from triggerer.errors import SubmitFailed
from triggerer.worker.spark.sessions.classic import find_installation


@dataclass(frozen=True)
class TrainedHome:
    """A home with a class archive. Two processes tried to create the archive at the same time.

    `made` has the last line that each process printed.
    """

    path: Path
    made: list[str]

    def lend_archive(self, home: Path) -> None:
        """Link the archive into another home, so that sessions there start in half the time."""
        classes = home / "spark" / "classes"
        classes.mkdir(parents=True)
        for file in (self.path / "spark" / "classes").glob("*.*"):
            os.link(file, classes / file.name)


def train_home(folder: Path) -> TrainedHome:
    """Create a home with an archive of Spark's classes in this folder, unless it exists.

    While another process is creating the home, this function waits.

    Raises:
        ServiceUnavailable: There is no Spark, or no Java for it.
    """
    home, record = folder / "home with a space", folder / "trained.json"
    with (folder / "training.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            record.write_text(json.dumps(_train(home)))
        return TrainedHome(home, json.loads(record.read_text()))


def _train(home: Path) -> list[str]:
    home.mkdir(exist_ok=True)
    try:
        find_installation(home)
    except SubmitFailed as absent:
        raise ServiceUnavailable(str(absent)) from absent
    code = "from triggerer.worker.spark.jvm.training import train; print(train(home))"
    with start_python(code, home) as one, start_python(code, home) as other:
        made = [process.communicate(timeout=280) for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), made
    return [shown.splitlines()[-1] for shown, _ in made]
