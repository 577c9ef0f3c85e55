"""Divides the tests into tiers: `make test` runs the quick tier, and `make test-all` runs the full tier.

The quick tier tests the features that most users need, in less than six minutes on two idle cores. The full tier has
the other tests, except the long proofs (mark `soak`). A test is in the full tier if one of these is true:

- It carries the mark `full`.
- Its module is not listed in `QUICK`.
- It needs PostgreSQL, and its module is not listed in `ON_POSTGRESQL`.

`python -m tests.tiers` prints the paths of the quick tier, which `make test` passes to pytest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

TESTS: Final = Path(__file__).parent

QUICK: Final = (
    "acceptance/cli/test_demo.py",
    "brokers/kafka/test_trigger.py",
    "conformance/test_directory.py",
    "conformance/test_harness.py",
    "conformance/test_memory.py",
    "conformance/test_state.py",
    "conformance/test_suites_find_faults.py",
    "conformance/test_watchers.py",
    "executor/test_runs.py",
    "hosting",
    "isolation/test_rules.py",
    "properties",
    "simulation",
    "store",
    "unit",
)
"""Folders and modules below tests/. `make test` runs their tests that are not marked `full`."""

ON_POSTGRESQL: Final = (
    "hosting/test_host.py",
    "store/dags/test_dag_sync.py",
    "store/database/test_database.py",
    "store/events/test_bulk.py",
    "store/events/test_recorder.py",
    "store/runs/test_attempts.py",
    "store/runs/test_execution.py",
    "store/runs/test_results.py",
    "store/scheduler/test_scheduler.py",
    "store/schema/test_migrations.py",
    "store/streams/test_leases.py",
)
"""Modules whose tests on PostgreSQL are in the quick tier too, because most users need their features."""


class Test(Protocol):
    """The part of `pytest.Item` that `is_quick` reads."""

    path: Path

    @property
    def fixturenames(self) -> Sequence[str]: ...
    def get_closest_marker(self, name: str) -> object | None: ...


def is_quick(test: Test) -> bool:
    """Return whether `make test` runs the test."""
    if test.get_closest_marker("full") or test.get_closest_marker("soak"):
        return False
    path = test.path.relative_to(TESTS).as_posix()
    if not any(path == one or path.startswith(f"{one}/") for one in QUICK):
        return False
    if path in ON_POSTGRESQL:
        return True
    # A test uses PostgreSQL through a server's fixture, or through `database`, which adds the mark `postgresql`.
    servers = {"postgres_server", "durable_postgres_server"} & set(test.fixturenames)
    return not servers and not test.get_closest_marker("postgresql")


if __name__ == "__main__":
    print(*(f"tests/{one}" for one in QUICK))
