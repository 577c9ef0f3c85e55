"""Builds a plugin of this folder as a wheel, and installs it only for the processes that a test starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Installed:
    """A project's wheel, installed in a folder of its own. Processes that `run` starts import the plugin from there."""

    def __init__(self, project: Path, folder: Path) -> None:
        self.project = folder / "project"
        self.site = folder / "site"
        shutil.copytree(project, self.project, ignore=shutil.ignore_patterns("__pycache__"))
        self.run("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
        (self.wheel,) = folder.glob("*.whl")
        self.run(
            "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(self.site),
            str(self.wheel),
        )  # fmt: skip
        # Without the copied sources, the tests import the plugin from the wheel.
        shutil.rmtree(self.project / project.name.replace("-", "_"))

    @property
    def path(self) -> str:
        """The value of PYTHONPATH that lets a process import the plugin and this checkout."""
        return f"{self.site}{os.pathsep}{ROOT}"

    def run(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.project,
            env={**os.environ, **environment, "PYTHONPATH": self.path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
