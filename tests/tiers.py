"""The tiers of the tests: `make test` runs the quick tier, and `make test-all` the full one, which is all the rest.

The quick tier has what a user's path crosses, in less than six minutes on two idle cores. A test is in the full tier if
it carries the mark `full`, if its module is not listed here, or if it needs PostgreSQL and its module is not in
`ON_POSTGRESQL`. The long proofs (mark `soak`) are in neither.

`python -m tests.tiers` prints the paths of the quick tier, so that nothing else is collected for it.
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
"""Folders and modules below tests/ of which `make test` runs what is not marked `full`."""

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
"""Modules of the main path, whose quick tests run on PostgreSQL, too."""


class Test(Protocol):
    """The part of `pytest.Item` that decides about its tier."""

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
    # A test that runs on each database asks for the server only while it runs: the mark of its parameter tells.
    servers = {"postgres_server", "durable_postgres_server"} & set(test.fixturenames)
    return not servers and not test.get_closest_marker("postgresql")


if __name__ == "__main__":
    print(*(f"tests/{one}" for one in QUICK))
