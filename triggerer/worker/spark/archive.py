"""The archive of Spark's classes, parsed and verified, that halves the time a JVM needs to start.

Java's name for it is application class-data sharing (AppCDS). An archive is made by a training run
(`training.py`) and read by every later JVM that has the same Java and the same Spark jars. Java
itself leaves out one that does not fit; one that was cut short, however, has crashed Java 17. Hence
the size in a file of its own: without it, or with another size, an archive is not used.
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

from triggerer.worker.spark.java import Java

ROOM_BYTES: Final = 600 * 1024**2
"""An archive has 180 MB and is written beside the one that it replaces."""


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one Spark, whether it exists yet or not."""

    directory: Path
    """Absolute: Java records the path of the base archive in the one on top of it."""
    key: str
    needs_base: bool
    """This Java came without an archive of its own classes, on which ours could be put."""

    @property
    def path(self) -> Path:
        return self.directory / f"{self.key}.jsa"

    @property
    def base_path(self) -> Path:
        return self.directory / f"{self.key}.base.jsa"

    def new_draft(self) -> Path:
        """Where Java may write. Not the same twice: a JVM that lost its parent may still be writing."""
        return self.directory / f"{os.getpid()}-{time.monotonic_ns()}.draft"

    def drafts(self) -> list[Path]:
        """What training runs left behind; for the holder of the lock."""
        return list(self.directory.glob("*.draft"))

    @property
    def lock_path(self) -> Path:
        return self.directory / "lock"

    def is_usable(self) -> bool:
        return _is_whole(self.path) and (not self.needs_base or self.is_base_usable())

    def is_base_usable(self) -> bool:
        return _is_whole(self.base_path)

    def publish(self, draft: Path, path: Path) -> None:
        """Move a finished archive to where JVMs look for it, and drop those for older versions."""
        size = draft.stat().st_size
        _size_path(path).unlink(missing_ok=True)
        draft.replace(path)
        _size_path(path).write_text(str(size))
        self._drop_old()

    def discard(self) -> None:
        """Make sure that no JVM uses it any more; those that have it mapped keep what they have."""
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
        # The newest of the others stays: an upgrade may be taken back, or a home shared by two.
        for path in sorted(others, key=lambda other: other.stat().st_mtime)[:-1]:
            for file in self.directory.glob(f"{path.stem}.*"):
                file.unlink(missing_ok=True)


def archive_for(
    java: Java, spark_home: Path, pyspark_version: str, directory: Path
) -> ClassArchive:
    """The archive that fits this Java and these jars; nothing is looked up or written."""
    jars = spark_home / "jars"
    # Java compares the time of every jar: an archive for jars that were installed anew is refused.
    installed = jars.stat().st_mtime_ns if jars.exists() else 0
    identity = f"{java.home}|{java.version}|{jars}|{installed}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:8]
    return ClassArchive(
        directory=directory.absolute(),
        key=f"java-{java.version}-spark-{pyspark_version}-{digest}",
        needs_base=not java.has_class_archive,
    )


def quiet_options(java: Java) -> list[str]:
    """Java says at length which classes it left out, and why it does not use an archive."""
    return ["-Xlog:cds*=off", *(["-Xlog:aot*=off"] if java.feature >= 24 else [])]


def has_room(directory: Path) -> bool:
    """Whether an archive leaves some of the disk to others."""
    return shutil.disk_usage(directory).free > ROOM_BYTES


def _size_path(path: Path) -> Path:
    return path.with_suffix(".size")


def _is_whole(path: Path) -> bool:
    try:
        return path.stat().st_size == int(_size_path(path).read_text())
    except (OSError, ValueError):
        return False
