"""Compiles one Java class into a jar with the JDK's `javac`."""

import shutil
import subprocess
import zipfile
from pathlib import Path

from tests.services.process import ServiceUnavailable


def compile_jar(source: Path, jar: Path, *, libraries: Path) -> None:
    """Compile a source file into a jar.

    Args:
        libraries: A folder with the jars that the source imports.
    Raises:
        ServiceUnavailable: There is no `javac`.
    """
    javac = shutil.which("javac")
    if javac is None:
        raise ServiceUnavailable("no javac on PATH, which a JDK brings")
    classes = jar.with_suffix(".classes")
    classes.mkdir()
    # Spark accepts Java 17 and newer.
    command: list[str | Path] = [
        javac,
        "--release",
        "17",
        "-cp",
        f"{libraries}/*",
        "-d",
        classes,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(jar, "w") as archive:
        for file in classes.rglob("*.class"):
            archive.write(file, file.relative_to(classes))
