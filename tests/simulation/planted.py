"""Looks for seeds that find a planted bug, and states them with the mutation."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.simulation.mutations import Mutation
from triggerer.testing.simulation.command import outcomes

STEPS = 1_000


class Found(NamedTuple):
    """A seed that breaks a promise."""

    seed: int
    rule: str


def search(bug: Mutation, *, start: int, seeds: int) -> Found | None:
    """Run the simulation with the bug in this process; None: these seeds kept every promise."""
    with bug.planted():
        for outcome in outcomes(range(start, start + seeds), steps=STEPS):
            if outcome.violation is not None:
                return Found(outcome.scenario.seed, outcome.violation.rule)
    return None


def state_seed(bug: Mutation, seed: int) -> None:
    """Write another seed into the file that states the mutation."""
    stated = re.compile(rf"(seed=)\d+((?:, [^)]*)?\)\ndef {bug.name}\()")
    text, count = stated.subn(rf"\g<1>{seed}\g<2>", bug.file.read_text())
    assert count == 1, f"{bug.file} states {count} seeds for {bug.name}"
    bug.file.write_text(text)
