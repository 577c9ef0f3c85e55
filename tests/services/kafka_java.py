"""Kafka's jars, and an archive of its classes that halves a broker's start: in a cache that outlives the checkout."""

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

POM = Path(__file__).with_name("kafka") / "pom.xml"


@dataclass(frozen=True, slots=True)
class KafkaJava:
    """What Kafka's programs are started with."""

    java: Path
    jars: Path
    options: tuple[str, ...] = ()

    def command(self, heap: str, program: str, *arguments: str | Path) -> list[str | Path]:
        """The command that runs one of Kafka's main classes."""
        logger = "-Dorg.slf4j.simpleLogger"
        # Archived classes are used where the class path is the same, so its order is ours.
        classpath = ":".join(sorted(map(str, self.jars.glob("*.jar"))))
        return [
            self.java, f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self.options,
            "-cp", classpath, f"{logger}.defaultLogLevel=warn", f"{logger}.showDateTime=true",
            f"{logger}.dateTimeFormat=HH:mm:ss.SSS", program, *arguments,
        ]  # fmt: skip

    def with_archive(self, train: Callable[["KafkaJava"], None]) -> "KafkaJava":
        """The same with an archive of the classes that `train` makes Java load, once for each Java on a machine."""
        version = subprocess.run([self.java, "-version"], capture_output=True, check=True).stderr
        archive = self.jars.with_suffix(f".{hashlib.sha256(version).hexdigest()[:12]}.jsa")
        with _locked(self.jars.parent):
            if not archive.exists():
                draft = archive.with_suffix(".draft")
                train(replace(self, options=(f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds=off")))
                if not draft.exists():
                    return self
                draft.rename(archive)
        return replace(self, options=(f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off"))


@cache
def find_kafka() -> KafkaJava:
    """Java and Kafka's jars; the first use on a machine takes them from Maven's repository (43 MB).

    Raises:
        ServiceUnavailable: There is no Java 17, or Kafka is not cached and Maven is missing or could not get it.
    """
    java = find_java()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triggerer-tests"
    jars = root / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        if not jars.is_dir():
            _take_jars(jars)
    return KafkaJava(java, jars)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    # Other workers of the session want the same at the same time.
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _take_jars(target: Path) -> None:
    if (maven := shutil.which("mvn")) is None:
        raise ServiceUnavailable("no Kafka broker: Maven (mvn), which gets it, is not on PATH")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        done = subprocess.run(
            [
                maven, "--batch-mode", "--quiet", f"--file={POM}",
                "dependency:copy-dependencies", "-DincludeScope=runtime",
                f"-DoutputDirectory={scratch}/jars",
            ],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ServiceUnavailable(f"Maven could not get Kafka: {done.stdout.strip()[:500]}")
        Path(scratch, "jars").rename(target)
