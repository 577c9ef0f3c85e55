"""Asks an oracle: a script that runs with the Python of Airflow's own environment."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ask_airflow(python: str, oracle: str, cases: Sequence[dict[str, Any]]) -> list[Any]:
    """What a script beside this module answers to each of the cases, which it reads as JSON."""
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
