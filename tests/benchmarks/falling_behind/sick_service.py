"""One service or two on the same store, that are killed while they work."""

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
    """Instances of `triggerer standalone`; the first is alone unless there are takeovers.

    Args:
        count: 2 needs PostgreSQL: one owns the stream, the other waits for its lease to run out.
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
        """Until a query of one value answers true.

        Raises:
            AssertionError: It did not in time; the message has the end of a log.
        """
        wait_until(
            lambda: self.records.holds(query),
            within_s=within_s,
            what=what,
            of=self.instances[0],
        )

    def owner(self) -> Instance | None:
        """The instance that owns the stream; None while nobody does."""
        for (owner,) in self.records.rows(_OWNER):
            # `<host>:<pid>:<random>`
            pid = int(owner.split(":")[1])
            for instance in self.instances:
                family = (instance.pid, *(child.pid for child in instance.children()))
                if instance.is_running and pid in family:
                    return instance
        return None

    def kill_and_restart(self) -> None:
        """SIGKILL to the first instance, which is started again at once."""
        self.instances[0].kill()
        self.instances[0].start()

    def take_over(self) -> None:
        """SIGKILL to the owner; it is started again once another owns the stream.

        Raises:
            AssertionError: Nobody took over within a minute.
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
        """SIGTERM to all that run."""
        for instance in self.instances:
            if instance.is_running:
                instance.stop()

    def end(self) -> None:
        """SIGKILL to all that run, with all that they started."""
        for instance in self.instances:
            if instance.is_running:
                children = instance.children()
                instance.kill()
                for child in children:
                    with suppress(psutil.NoSuchProcess):
                        child.kill()
