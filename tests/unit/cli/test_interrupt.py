import subprocess
import sys

# As when a module that defines a dataclass is being imported.
_SCRIPT = """
from triggerer.cli import main

def app():
    exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")

main.app = app
main.main()
"""


def test_ctrl_c_ends_with_130_wherever_it_strikes() -> None:
    ended = subprocess.run([sys.executable, "-c", _SCRIPT], timeout=60, check=False)
    assert ended.returncode == 130
