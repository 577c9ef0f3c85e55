"""A service with one DAG, which runs a Spark application in cluster mode. The application leaves files, its marks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tests.acceptance.standalone import Standalone, serving

APPLICATIONS: Final = Path(__file__).parents[1] / "services" / "clusters" / "applications"
_DAG: Final = """
from triggerer import DAG, SparkApplication

with DAG("steps", params={{"marks": ""}}):
    SparkApplication("work", {application!r}, arguments=["{{{{ params.marks }}}}"], conf={conf!r}, main_class={main!r})
"""


@dataclass(frozen=True)
class Scene:
    """One run of the DAG, and the folder of its marks."""

    service: Standalone
    marks: Path

    def trigger(self) -> None:
        self.marks.mkdir()
        params = json.dumps({"marks": str(self.marks)})
        self.service.run("dags", "trigger", "steps", "--params", params)

    def tell(self, what: str) -> None:
        """Tell the application to `finish` or to `fail`."""
        (self.marks / what).touch()

    def drivers(self) -> list[Path]:
        """Return one file for each driver that has started. It contains the driver's `TRIGGERER_RUN_TOKEN`."""
        return list(self.marks.glob("driver *"))

    def tasks(self) -> int:
        return len(list(self.marks.glob("task *")))

    def until_works(self) -> None:
        """Wait until some tasks have run after this call."""
        before = self.tasks()
        self.until(lambda: self.tasks() > before + 3, "tasks run")

    def works_no_longer(self) -> bool:
        """Wait a second; return True if no task left a mark in this time."""
        before = self.tasks()
        time.sleep(1)  # no event shows that the marks have stopped
        return self.tasks() == before

    def show(self) -> Any:
        return self.service.json("runs", "show", "steps", "--last")

    def launch(self) -> Any:
        """Return the newest launch of the run."""
        launches = [one for attempt in self.show()["attempts"] for one in attempt["launches"]]
        return launches[-1]

    def until_launch(self, **values: str | None) -> Any:
        """Wait until the newest launch has these values."""

        def has() -> bool:
            launches = [one for attempt in self.show()["attempts"] for one in attempt["launches"]]
            return bool(launches) and values.items() <= launches[-1].items()

        self.until(has, f"a launch with {values}")
        return self.launch()

    def until_stopped(self) -> None:
        """Wait until the store shows that the newest launch was stopped and has ended.

        The run's process has five seconds to stop the launch. After that, the executor stops it.
        """
        self.until(lambda: self.launch()["ended_at"] is not None, "the launch has ended")
        assert self.launch()["state"] in {"cancelled", "killed"}

    def until_state(self, state: str) -> Any:
        self.until(lambda: self.show()["state"] == state, f"the run is {state}")
        return self.show()

    def attempts(self) -> list[tuple[int, str]]:
        return [(one["number"], one["state"]) for one in self.show()["attempts"]]

    def end_service(self, how: Literal["kill", "stop"]) -> None:
        assert self.service.process is not None
        if how == "stop":
            assert self.service.stop() == 0
        else:
            self.service.process.kill()
            self.service.process.wait()

    def until(self, condition: Callable[[], bool], what: str, *, within_s: float = 150) -> None:
        """Check the condition again and again until it is true.

        Raises:
            AssertionError: The condition did not become true in time. The message has the run and the end of its log.
        """
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                log = self.service.run("runs", "logs", "steps", "--last").stdout
                raise AssertionError(f"not in time: {what}\n{self.show()}\n{log[-4000:]}")
            time.sleep(0.2)  # neither the store nor the marks send a notice to this process


@contextmanager
def serving_application(
    folder: Path,
    application: Path | str,
    *,
    master: str,
    conf: Mapping[str, str],
    main_class: str | None = None,
) -> Iterator[Standalone]:
    """Start a service whose DAG `steps` submits this application to the master in cluster mode.

    Args:
        conf: The section `[spark.conf]` of the service's settings.
    """
    own = {"spark.submit.deployMode": "cluster"}
    dag = _DAG.format(application=str(application), conf=own, main=main_class)
    lines = [f"{json.dumps(key)} = {json.dumps(text)}" for key, text in conf.items()]
    spark = f'[spark]\nmaster = "{master}"\ncluster_patience = 2\n[spark.conf]\n'
    with serving(folder, dag, count=1, settings=spark + "\n".join(lines) + "\n") as service:
        yield service
