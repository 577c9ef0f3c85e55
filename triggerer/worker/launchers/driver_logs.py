"""The logs of drivers on a standalone cluster, read from the web pages of the Spark workers that execute them."""

from __future__ import annotations

from dataclasses import dataclass

from triggerer.worker.launchers.cluster_http import HttpApi, NoAnswer
from triggerer.worker.spark.jvm.driver_deaths import cause_in


@dataclass(frozen=True, slots=True)
class DriverLog:
    """The log of one driver's standard error."""

    page: str
    """The address of the Spark worker's web page."""
    driver: str
    """The driver's id, such as `driver-20251128184500-0001`."""

    @property
    def link(self) -> str:
        return f"{self.page}/logPage/?{self._query}"

    def cause(self) -> str | None:
        """Return the probable cause of the driver's end; None: the page does not answer, or the log shows no cause."""
        try:
            text = HttpApi(self.page).read("GET", f"/log/?{self._query}")
        except NoAnswer:
            return None
        return cause_in(text.splitlines()) or None

    @property
    def _query(self) -> str:
        return f"driverId={self.driver}&logType=stderr"
