"""The archive of Spark's parsed and verified classes. A JVM that reads the archive starts in half the time.

Java's name for this is application class-data sharing (AppCDS). A training run (`training.py`) makes an archive for one
Java and one set of Spark jars. Java ignores an archive that does not fit, but a truncated archive has crashed Java 17.
So the training run stores the archive's size in a separate file, and no JVM gets an archive of another size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from triggerer.worker.spark.jvm.java import Java

ROOM_BYTES: Final = 600 * 1024**2
"""The free disk space that a training run needs. A new archive takes 180 MB, because the old archive stays until the
new one exists. The rest is a reserve.
"""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one Spark, even if it does not exist yet."""

    directory: Path
    """The folder of all archives. The path is absolute, because an archive contains the path of its base archive (see
    `needs_base`).
    """
    key: str
    needs_base: bool
    """True if this Java came without a base archive, which contains Java's own classes. Then the training also makes a
    base archive, which our archive extends.
    """

    @property
    def path(self) -> Path:
        return self.directory / f"{self.key}.jsa"

    @property
    def base_path(self) -> Path:
        return self.directory / f"{self.key}.base.jsa"

    def new_draft(self) -> Path:
        """Return a path for Java to write to. Each call returns another path: an earlier JVM may still be writing."""
        return self.directory / f"{os.getpid()}-{time.monotonic_ns()}.draft"

    def drafts(self) -> list[Path]:
        """Return the drafts of earlier training runs. Only the process that has the lock deletes these files."""
        return list(self.directory.glob("*.draft"))

    @property
    def lock_path(self) -> Path:
        return self.directory / "lock"

    def is_usable(self) -> bool:
        return _is_whole(self.path) and (not self.needs_base or self.is_base_usable())

    def is_base_usable(self) -> bool:
        return _is_whole(self.base_path)

    def publish(self, draft: Path, path: Path) -> None:
        """Move a finished archive to the path where JVMs look for it. Delete the other archives except the newest."""
        size = draft.stat().st_size
        _size_path(path).unlink(missing_ok=True)
        draft.replace(path)
        _size_path(path).write_text(str(size))
        self._drop_old()

    def discard(self) -> None:
        """Make sure that no further JVM uses the archive. JVMs that have it mapped keep their mapping."""
        for path in (self.path, self.base_path):
            with contextlib.suppress(OSError):
                _size_path(path).unlink(missing_ok=True)
                path.unlink(missing_ok=True)

    def _drop_old(self) -> None:
        others = [
            path
            for path in self.directory.glob("*.jsa")
            if path != self.path and not path.name.endswith(".base.jsa")
        ]
        # Keep the newest of the other archives: an upgrade may be undone, or two services may share a home.
        for path in sorted(others, key=lambda other: other.stat().st_mtime)[:-1]:
            for file in self.directory.glob(f"{path.stem}.*"):
                file.unlink(missing_ok=True)


def archive_for(
    java: Java, spark_home: Path, pyspark_version: str, directory: Path
) -> ClassArchive:
    """Return the archive that fits this Java and these jars. Nothing is written."""
    jars = spark_home / "jars"
    # Java refuses an archive if the modification time of a jar has changed. A reinstalled PySpark gets a new archive,
    # because the time of the folder `jars` is a part of the key.
    installed = jars.stat().st_mtime_ns if jars.exists() else 0
    identity = f"{java.home}|{java.version}|{jars}|{installed}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:8]
    return ClassArchive(
        directory=directory.absolute(),
        key=f"java-{java.version}-spark-{pyspark_version}-{digest}",
        needs_base=not java.has_class_archive,
    )


def quiet_options(java: Java) -> list[str]:
    """Return options that silence Java's reports about ignored classes and unused archives."""
    return ["-Xlog:cds*=off", *(["-Xlog:aot*=off"] if java.feature >= 24 else [])]


def has_room(directory: Path) -> bool:
    """True if the disk has enough room for a training run."""
    return shutil.disk_usage(directory).free > ROOM_BYTES


def _size_path(path: Path) -> Path:
    return path.with_suffix(".size")


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size == int(_size_path(path).read_text())
    except (OSError, ValueError):
        return False
