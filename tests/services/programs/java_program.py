"""The cached jars of a Java program, and a cached archive of its classes.

The archive halves the time that the program needs to start.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from tests.services.process import ServiceUnavailable
from tests.services.programs.java import find_java


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java runtime, jars, and the options for starting a main class of the jars."""

    java: Path
    jars: Path
    options: tuple[str, ...] = ()

    def command(self, heap: str, program: str, *arguments: str | Path) -> list[str | Path]:
        """The command that runs one of the main classes."""
        logger = "-Dorg.slf4j.simpleLogger"
        # Java uses the archive only with an equal class path, so the jars are sorted.
        classpath = ":".join(sorted(map(str, self.jars.glob("*.jar"))))
        return [
            self.java, f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self.options,
            "-cp", classpath, f"{logger}.defaultLogLevel=warn", f"{logger}.showDateTime=true",
            f"{logger}.dateTimeFormat=HH:mm:ss.SSS", program, *arguments,
        ]  # fmt: skip

    def with_archive(self, train: Callable[["JavaProgram"], None]) -> "JavaProgram":
        """Return this program with an archive of the classes that Java loads while `train` runs.

        The archive is created once for each version of Java on a machine.
        """
        version = subprocess.run([self.java, "-version"], capture_output=True, check=True).stderr
        archive = self.jars.with_suffix(f".{hashlib.sha256(version).hexdigest()[:12]}.jsa")
        with locked("lock"):
            if not archive.exists():
                draft = archive.with_suffix(".draft")
                train(replace(self, options=(f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds=off")))
                if not draft.exists():
                    return self
                draft.rename(archive)
        return replace(self, options=(f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"))


@cache
def find_program(name: str) -> JavaProgram:
    """Return Java and the jars that `<name>/pom.xml` names. The first use on a machine gets the jars with Maven.

    Raises:
        ServiceUnavailable: There is no Java 17. Or the jars are not cached, and Maven is missing or failed.
    """
    return JavaProgram(find_java(), _find(name, "copy-dependencies"))


@cache
def find_jars(name: str) -> Path:
    """Return the folder with the jars that `<name>/pom.xml` names. The first use on a machine gets them with Maven.

    Raises:
        ServiceUnavailable: The files are not cached, and Maven is missing or could not get them.
    """
    return _find(name, "copy-dependencies")


@cache
def find_unpacked(name: str) -> Path:
    """Return the folder with the unpacked archives that `<name>/pom.xml` names. The first use gets them with Maven.

    Raises:
        ServiceUnavailable: The files are not cached, and Maven is missing or could not get them.
    """
    return _find(name, "unpack-dependencies")


def _find(name: str, goal: str) -> Path:
    pom = Path(__file__).with_name("maven") / name / "pom.xml"
    found = cache_folder() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    with locked("lock"):
        if not found.is_dir():
            _take(name, pom, goal, found)
    return found


def cache_folder() -> Path:
    """Return this user's cache folder, which lies outside the checkout."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triggerer-tests"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock `name` of the cache, because several workers of a test session may need the same file at once."""
    with (cache_folder() / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _take(name: str, pom: Path, goal: str, target: Path) -> None:
    if (maven := shutil.which("mvn")) is None:
        raise ServiceUnavailable(f"no {name}: Maven (mvn), which gets it, is not on PATH")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        done = subprocess.run(
            [
                maven, "--batch-mode", "--quiet", f"--file={pom}",
                f"dependency:{goal}", "-DincludeScope=runtime",
                f"-DoutputDirectory={scratch}/found",
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServiceUnavailable(f"Maven could not get {name}: {done.stdout.strip()[:500]}")
        Path(scratch, "found").rename(target)
