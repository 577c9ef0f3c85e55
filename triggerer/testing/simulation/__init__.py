"""The simulation runs the real runtime, recorder and scheduler on virtual time, and injects faults.

Models in memory replace the broker and the store.

Three terms are used in all modules:

- A *seed* is a number that decides all random choices of one run, and names this run.
- A *step* is one callback of the event loop.
- The *cohort* of a message is the set of watchers that must resolve the message.

`python -m triggerer.testing.simulation --seeds N` looks for a seed that breaks a promise.
`--replay SEED` shows all that happens in a seed.
`docs/notes/simulation.md` describes the models and the checks.
"""

from triggerer.testing.simulation.checks.checker import Violation
from triggerer.testing.simulation.kernel.scenario import Scenario
from triggerer.testing.simulation.supervisor import Outcome, simulate

__all__ = ["Outcome", "Scenario", "Violation", "simulate"]
