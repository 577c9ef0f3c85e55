"""Runs an oracle, which is a script that answers cases with Airflow's own code."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ask_airflow(python: str, oracle: str, cases: Sequence[dict[str, Any]]) -> list[Any]:
    """Return an oracle's answers to the cases, in their order.

    Args:
        python: An interpreter in an environment with Airflow.
        oracle: The script's file name, in the folder of this module.
    """
    done = subprocess.run(
        [python, str(Path(__file__).with_name(oracle))],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[Any] = json.loads(done.stdout)
    return answers
