"""Starts one or two services on one store, and kills them while they work."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from tests.acceptance.instance import Instance, wait_until
from tests.acceptance.records import Records

_OWNER: Final = "SELECT owner FROM stream WHERE owner IS NOT NULL"


class Services:
    """Instances of `triggerer standalone`.

    Args:
        count: 1, or 2 for takeovers. With 2, the store must be PostgreSQL. One instance reads the topic. The other
            instance takes over when the first instance's lease has run out.
    """

    def __init__(
        self, folder: Path, *, count: int, dags_folder: Path, url: str, bootstrap: str
    ) -> None:
        self.records = Records(url)
        self.instances: Sequence[Instance] = [
            Instance(
                folder / f"home-{number}",
                dags_folder=dags_folder,
                database_url=url,
                bootstrap=bootstrap,
                settings="[api]\nport = 0\n",
            )
            for number in range(count)
        ]

    def start(self) -> None:
        for instance in self.instances:
            instance.start()

    def wait_until(self, query: str, *, within_s: float, what: str) -> None:
        """Wait until a query of one value returns true.

        Raises:
            AssertionError: The query did not return true in time. The message has the end of the first instance's log.
        """
        wait_until(
            lambda: self.records.holds(query),
            within_s=within_s,
            what=what,
            of=self.instances[0],
        )

    def owner(self) -> Instance | None:
        """Return the running instance that owns the stream; None if there is no such instance."""
        for (owner,) in self.records.rows(_OWNER):
            # An owner is `<host>:<pid>:<random>`.
            pid = int(owner.split(":")[1])
            for instance in self.instances:
                family = (instance.pid, *(child.pid for child in instance.children()))
                if instance.is_running and pid in family:
                    return instance
        return None

    def kill_and_restart(self) -> None:
        """Kill the first instance with SIGKILL, and start it again at once."""
        self.instances[0].kill()
        self.instances[0].start()

    def take_over(self) -> None:
        """Kill the owner with SIGKILL, and start it again once the other instance owns the stream.

        Raises:
            AssertionError: There was no owner, or no takeover, within a minute.
        """
        wait_until(lambda: self.owner() is not None, within_s=60, what="somebody owns the stream")
        owner = self.owner()
        assert owner is not None
        owner.kill()
        wait_until(
            lambda: self.owner() not in (None, owner),
            within_s=60,
            what="another instance has taken the stream over",
            of=self.instances[0],
        )
        owner.start()

    def stop(self) -> None:
        """Stop all running instances with SIGTERM."""
        for instance in self.instances:
            if instance.is_running:
                instance.stop()

    def end(self) -> None:
        """Kill all running instances and their child processes with SIGKILL."""
        for instance in self.instances:
            if instance.is_running:
                children = instance.children()
                instance.kill()
                for child in children:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
