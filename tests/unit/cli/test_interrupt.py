import subprocess
import sys
from pathlib import Path

import pytest

_MODULE = """
import os, signal
from triggerer.cli import app as commands, main

def app():
    {strike}

commands.app = app
main.main()
"""
_FROM_A_STRING = 'exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")'
# Before Python 3.12, a class wraps whatever `__set_name__` raises in a `RuntimeError`.
_IN_A_DESCRIPTOR = """
    class Field:
        def __set_name__(self, owner, name):
            os.kill(os.getpid(), signal.SIGINT)
    class Defined:
        field = Field()
"""


@pytest.mark.parametrize(
    "strike",
    [_FROM_A_STRING, _IN_A_DESCRIPTOR],
    ids=["while a dataclass is made", "while a class is made"],
)
def test_ctrl_c_ends_with_130_wherever_it_strikes(tmp_path: Path, strike: str) -> None:
    (tmp_path / "interrupted.py").write_text(_MODULE.format(strike=strike))
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(
        command, cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "")
