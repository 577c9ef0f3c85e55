"""A Java program's jars, and an archive of its classes that halves its start: in a cache that outlives the checkout."""

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

from tests.services.java import find_java
from tests.services.process import ServiceUnavailable


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """The arguments with which the main classes of some jars are started."""

    java: Path
    jars: Path
    options: tuple[str, ...] = ()

    def command(self, heap: str, program: str, *arguments: str | Path) -> list[str | Path]:
        """The command that runs one of the main classes."""
        logger = "-Dorg.slf4j.simpleLogger"
        # Archived classes are used where the class path is the same, so its order is ours.
        classpath = ":".join(sorted(map(str, self.jars.glob("*.jar"))))
        return [
            self.java, f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self.options,
            "-cp", classpath, f"{logger}.defaultLogLevel=warn", f"{logger}.showDateTime=true",
            f"{logger}.dateTimeFormat=HH:mm:ss.SSS", program, *arguments,
        ]  # fmt: skip

    def with_archive(self, train: Callable[["JavaProgram"], None]) -> "JavaProgram":
        """Return the command with an archive of the classes that `train` makes Java load, made once for each Java on a
        machine."""
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
    """Java, and the jars that `<name>/pom.xml` names; the first use on a machine takes them from Maven's repository.

    Raises:
        ServiceUnavailable: There is no Java 17, or the jars are not cached and Maven is missing or could not get them.
    """
    return JavaProgram(find_java(), _find(name, "copy-dependencies"))


@cache
def find_jars(name: str) -> Path:
    """The folder with the jars that `<name>/pom.xml` names; as `find_program` for the rest.

    Raises:
        ServiceUnavailable: They are not cached, and Maven is missing or could not get them.
    """
    return _find(name, "copy-dependencies")


@cache
def find_unpacked(name: str) -> Path:
    """Where the archives are unpacked that `<name>/pom.xml` names; as `find_program` for the rest.

    Raises:
        ServiceUnavailable: They are not cached, and Maven is missing or could not get them.
    """
    return _find(name, "unpack-dependencies")


def _find(name: str, goal: str) -> Path:
    pom = Path(__file__).with_name(name) / "pom.xml"
    found = cache_folder() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    with locked("lock"):
        if not found.is_dir():
            _take(name, pom, goal, found)
    return found


def cache_folder() -> Path:
    """A folder of this user that outlives the checkout."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triggerer-tests"
    root.mkdir(parents=True, exist_ok=True)
    return root


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep others out who use the same file of the cache: workers of a session want the same at the same time."""
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
