"""Finds a Java runtime; starts nothing."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.services.process import ServiceUnavailable

OLDEST = 17


@cache
def find_java() -> Path:
    """The `java` command of JAVA_HOME or PATH, whichever is first to be at least Java 17.

    Raises:
        ServiceUnavailable: There is none.
    """
    candidates = [shutil.which("java")]
    if home := os.environ.get("JAVA_HOME"):
        candidates.insert(0, shutil.which("java", path=str(Path(home, "bin"))))
    seen = []
    for candidate in filter(None, candidates):
        if (major := _major_version(candidate)) >= OLDEST:
            return Path(candidate)
        seen.append(f"{candidate} is Java {major}")
    raise ServiceUnavailable(
        f"no Java {OLDEST} or newer in JAVA_HOME or on PATH" + "".join(f"; {s}" for s in seen)
    )


def _major_version(java: str) -> int:
    """17 for `version "17.0.15"`, 8 for `version "1.8.0_391"`, 0 if it does not say."""
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(match[1]) if match else 0
