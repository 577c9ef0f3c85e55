"""Where a moved trigger's code runs, as the service sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import anyio

from triggerer.errors import PluginError
from triggerer.isolation.mailbox import Mailbox
from triggerer.isolation.messages import (
    Cancel,
    CleanedUp,
    CleanUp,
    Gone,
    Order,
    Over,
    Perform,
    Ready,
    Report,
    Work,
)


class Place(ABC):
    """One guest, from `open` to `aclose`. One task talks to it at a time."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._reports: Mailbox[Report] = Mailbox()
        self._gone: Gone | None = None
        self._is_ready = False
        self._is_performing = False

    # What a kind of place does

    @abstractmethod
    async def open(self) -> None:
        """Start it, and return once its trigger is made.

        Raises:
            PluginError: It cannot be started, or the trigger cannot be made there.
        Cancellation: `aclose` is still to be called.
        """

    @abstractmethod
    def order(self, order: Order) -> None:
        """Tell the guest; never blocks, and does nothing once it is gone."""

    @abstractmethod
    def pack(self, value: Any) -> Any:
        """What crosses over for a raw event.

        Raises:
            PluginError: It cannot cross over.
        """

    @abstractmethod
    def unpack(self, packed: Any) -> Any:
        """What the guest packed.

        Raises:
            PluginError: It cannot be had here.
        """

    @abstractmethod
    async def aclose(self, grace: float) -> None:
        """End it; what is still busy `grace` seconds after it was told is ended by force, or left behind."""

    # What they share

    def perform(self, work: Work) -> None:
        self.order(Perform(work))
        self._is_performing = True

    async def report(self) -> Report:
        """The next report.

        Raises:
            Exception: What ended the guest's life, if it is gone, with nothing left to report.
        """
        if self._gone is not None:
            raise self._gone.error
        report = await self._reports.get()
        if isinstance(report, Gone):
            self._gone = report
            self._is_performing = False
            raise report.error
        if isinstance(report, Over):
            self._is_performing = False
        return report

    @property
    def is_performing(self) -> bool:
        """Whether something that was begun has not been reported to be over."""
        return self._is_performing

    @property
    def is_obliging(self) -> bool:
        """Whether it can be asked for something now."""
        return self._is_ready and self._gone is None and not self._is_performing

    async def stop_performing(self, grace: float) -> None:
        """Cancel what it performs, and wait until that has ended, `grace` seconds at most."""
        if not self._is_performing:
            return
        self.order(Cancel())
        with anyio.move_on_after(grace, shield=True):
            try:
                while self._is_performing:
                    await self.report()
            except PluginError:
                # Gone: then nothing of it runs any more, which is all that is asked.
                return

    async def clean_up(self) -> None:
        """Have the trigger's `cleanup()` called.

        Raises:
            Exception: What it raised, or why it could not be called.
        """
        self.order(CleanUp())
        while not isinstance(report := await self.report(), CleanedUp):
            pass
        if report.error is not None:
            raise report.error

    async def _until_ready(self) -> None:
        report = await self.report()
        assert isinstance(report, Ready), report
        self._is_ready = True
