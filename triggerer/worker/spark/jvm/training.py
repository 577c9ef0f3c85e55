"""Makes the archive of Spark's classes, in a process of its own with the lowest priority.

A training run is a session during which Java records the loaded classes. Each version of Java and Spark needs one
training run, which takes half a minute of one core. If the training run fails, JVMs work without the archive, but start
more slowly. The worker tries again after it has opened another driver.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from triggerer.config import SparkSettings
from triggerer.errors import SparkError, SubmitFailed
from triggerer.worker.spark.jvm.archive import has_room, quiet_options
from triggerer.worker.spark.jvm.warmup import warm_up
from triggerer.worker.spark.sessions import classic
from triggerer.worker.spark.sessions.classic import Installation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRAINING_AFTER: Final = timedelta(seconds=20)
"""A missing archive is made this long after a local driver was opened, so that a short test makes no archive."""
_LOWEST_PRIORITY: Final = 19
_WRITING: Final = timedelta(minutes=5)
"""The time for Java to write the archive when the JVM ends. It takes ten seconds, and longer on a busy machine."""

_log = structlog.get_logger(__name__)


def train(home: Path) -> bool:
    """Make the archive of Spark's classes now if it is missing. Return whether the archive exists afterwards.

    The calling process must have no Spark session. Only one process at a time makes the archive for a home; another
    process returns False at once.

    Raises:
        SparkError: Java or PySpark is missing, or Spark does not start.
    """
    installation = classic.find_installation(home)
    archive = installation.archive
    if archive.is_usable():
        return True
    archive.directory.mkdir(parents=True, exist_ok=True)
    with _locked(archive.lock_path) as alone:
        if not alone:
            return False
        for abandoned in archive.drafts():
            abandoned.unlink(missing_ok=True)
        if not has_room(archive.directory):
            _log.warning("no room for an archive of Spark's classes", path=str(archive.directory))
            return False
        if archive.needs_base and not archive.is_base_usable():
            _write_base(installation)
        draft = archive.new_draft()
        _record(installation, draft)
        if not draft.exists():
            _log.warning("Java wrote no archive of Spark's classes", path=str(archive.path))
            return False
        archive.publish(draft, archive.path)
        return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Lock the file for the block; yield False if another process has locked it. A lock ends with its process."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _write_base(installation: Installation) -> None:
    archive, draft = installation.archive, installation.archive.new_draft()
    command = [str(installation.java.home / "bin" / "java"), "-Xshare:dump"]
    options = [f"-XX:SharedArchiveFile={draft}", *quiet_options(installation.java)]
    try:
        subprocess.run([*command, *options], check=True, capture_output=True, timeout=300)
        archive.publish(draft, archive.base_path)
    except (OSError, subprocess.SubprocessError) as error:
        raise SubmitFailed(f"Java could not archive its own classes: {error}") from error


def _record(installation: Installation, draft: Path) -> None:
    archive = installation.archive
    options = [f"-XX:ArchiveClassesAtExit={draft}"]
    if archive.needs_base:
        options.append(f"-XX:SharedArchiveFile={archive.base_path}")
    # The settings of `[spark]` do not matter here, because the archive contains only classes.
    session = classic.open_classic(
        SparkSettings(master="local[2]"),
        installation,
        app_name="triggerer-training",
        extra_java_options=options,
    )
    grace = timedelta(0)
    try:
        warm_up(session)
        exercise(session)
        grace = _WRITING
    finally:
        classic.close_classic(grace)


def exercise(session: SparkSession) -> None:
    """Load classes that runs often need but `warm_up` does not use: SQL, windows, files, Python functions."""
    from pyspark.sql import functions as f

    with tempfile.TemporaryDirectory(prefix="triggerer-training-") as directory:
        numbers = session.range(100).withColumn("key", f.col("id") % 3)
        numbers.createOrReplaceTempView("triggerer_training")
        session.sql(
            "select key, sum(id) over (partition by key order by id) as total, "
            "row_number() over (partition by key order by id desc) as place from triggerer_training"
        ).where("place = 1").collect()
        session.catalog.dropTempView("triggerer_training")
        for form in ("json", "csv"):
            path = f"{directory}/{form}"
            numbers.write.format(form).save(path)
            session.read.format(form).load(path).distinct().count()
        nested = numbers.select(
            f.to_json(f.struct("id", "key")).alias("text"), f.array("id").alias("a")
        )
        nested.select(f.from_json("text", "id long, key long"), f.explode("a")).collect()
        double = f.udf(lambda number: 2 * number, "long")
        numbers.select(double("id")).limit(3).cache().toPandas()


def start_training(home: Path) -> subprocess.Popen[bytes]:
    """Start the training in another process. To end the training early, close that process's standard input.

    Raises:
        OSError: No process can be started.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(home.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _give_up(*_: object) -> None:
    # Kill the JVM too, which is in this process group. If only this process ended, the JVM's standard input would
    # close, and the JVM would write the archive before it ends.
    os.killpg(0, signal.SIGKILL)


def _end_with_parent() -> None:
    # Do not read `sys.stdin`. The read would lock `sys.stdin`, and Python aborts if it must exit during the read.
    while os.read(0, 1):
        pass
    _give_up()


def main() -> None:
    """Run `python -m triggerer.worker.spark.jvm.training HOME`, until the archive exists or standard input ends."""
    os.nice(_LOWEST_PRIORITY)
    # `_give_up` kills the process group, so this process needs a group of its own. Ctrl-C does not reach this group.
    # But when Ctrl-C ends the parent, standard input closes, and `_end_with_parent` ends this process.
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _give_up)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    try:
        made = train(Path(sys.argv[1]))
    except SparkError as error:
        _log.warning("no archive of Spark's classes", reason=str(error))
        made = False
    sys.exit(0 if made else 1)


if __name__ == "__main__":
    main()
