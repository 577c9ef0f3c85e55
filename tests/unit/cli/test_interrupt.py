import subprocess
import sys
from pathlib import Path

# As when a module that defines a dataclass is being imported.
_MODULE = """
from triggerer.cli import app as commands, main

def app():
    exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")

commands.app = app
main.main()
"""


def test_ctrl_c_ends_with_130_wherever_it_strikes(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(_MODULE)
    command = [sys.executable, "-m", "interrupted"]
    assert subprocess.run(command, cwd=tmp_path, timeout=60, check=False).returncode == 130
