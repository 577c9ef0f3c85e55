"""Prepares the demo, runs it in the process of the service, and prints the result."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from shutil import which
from typing import Final

import anyio
from anyio import to_thread
from rich.console import Console

from triggerer.api.listening import ADDRESS_FILE
from triggerer.demo.accounts import ASSETS, committed_offsets, parquet_checks, store_checks
from triggerer.demo.broker import MockBroker
from triggerer.demo.checks import Check
from triggerer.demo.data import Dataset, load_dataset
from triggerer.demo.display import show
from triggerer.demo.flow import Flow
from triggerer.demo.home import DemoHome, choose_home, make_home
from triggerer.demo.latency import Latencies, measure
from triggerer.demo.report import print_answer, print_checks, print_latencies
from triggerer.domain.actors import CLI, Actor, Role
from triggerer.errors import TriggererError
from triggerer.observability.logging_setup import set_up_logging
from triggerer.operations.access.tokens import create_login_code
from triggerer.processes.signals import unwrapped_interrupts
from triggerer.service import ALL_PARTS, Service, StopReason, run

_COMMIT_WAIT_S: Final = 10.0
INTERRUPTED: Final = 130


def run_demo(home: Path | None, *, whole_year: bool, stays: bool = False) -> int:
    """Run the demo to its end; return the exit code: 1 if a count is wrong, 130 after Ctrl-C.

    Args:
        stays: Keep the service running after the report, until Ctrl-C.
    Raises:
        TriggererError: The demo could not be prepared, or a part of it failed.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    path = choose_home(home)
    broker = MockBroker()
    try:
        with unwrapped_interrupts():
            return _run(console, path, broker, whole_year=whole_year, stays=stays)
    except KeyboardInterrupt:
        # Ctrl-C came before the service listened for signals.
        return _interrupted(console, path)
    finally:
        broker.close()


def _run(console: Console, path: Path, broker: MockBroker, *, whole_year: bool, stays: bool) -> int:
    partitions = {topic: broker.create_topic(topic) for topic in ASSETS}
    home = make_home(path, bootstrap_servers=broker.bootstrap_servers)
    _say(console, f"[bold]triggerer demo[/] in {path}")
    topics = ", ".join(f"{name} ({count} partitions)" for name, count in partitions.items())
    _say(
        console,
        f"broker: Kafka protocol in this process, {broker.bootstrap_servers}; topics: {topics}",
    )
    demo = Demo(console, home, broker, partitions, whole_year=whole_year, stays=stays)
    with home.log.open("w", encoding="utf-8") as log:
        set_up_logging(home.settings.core, log)
        try:
            stopped = run(home.settings, ALL_PARTS, demo.work)
        except (TriggererError, BaseExceptionGroup):
            _say(console, f"The service's log is {home.log}")
            raise
    if demo.exit_code is not None:
        return demo.exit_code
    return demo.finish() if stopped is StopReason.WORK_DONE else _interrupted(console, path)


def _interrupted(console: Console, path: Path) -> int:
    _say(console, f"Interrupted. The results so far are in {path}")
    return INTERRUPTED


class Demo:
    """One run of the demo, in the process of a service that has started."""

    def __init__(
        self,
        console: Console,
        home: DemoHome,
        broker: MockBroker,
        partitions: dict[str, int],
        *,
        whole_year: bool,
        stays: bool,
    ) -> None:
        self._console = console
        self._home = home
        self._broker = broker
        self._partitions = partitions
        self._whole_year = whole_year
        self._stays = stays
        self.exit_code: int | None = None
        """The exit code, if the report was printed and the service continues after it (`--stay`); None otherwise."""
        self._checks: list[Check] = []
        self._latencies: Latencies | None = None
        self._flow: Flow | None = None

    async def work(self, service: Service) -> None:
        """Publish the messages, await their runs, and count the messages at the broker, in the store and in files."""
        try:
            await self._say_where_the_page_is(service)
            await self._publish_and_count(service)
            if self._stays:
                self.exit_code = self.finish()
                await self._say_where_the_page_is(service)
                _say(self._console, "The service keeps running. Ctrl-C stops it.")
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            _say(
                self._console,
                "Stopping, after the work in flight has ended. Ctrl-C again stops at once.",
            )
            raise

    async def _say_where_the_page_is(self, service: Service) -> None:
        address = (self._home.path / ADDRESS_FILE).read_text().strip()
        async with service.database.transaction() as session:
            code = await create_login_code(session, Actor("demo", Role.ADMIN, CLI), role=Role.ADMIN)
        _say(self._console, f"page:    {address}/login?code={code} (opens once)")

    async def _publish_and_count(self, service: Service) -> None:
        dataset = await to_thread.run_sync(
            lambda: load_dataset(whole_year=self._whole_year), abandon_on_cancel=True
        )
        _say(self._console, f"data: {dataset.summary}")
        flow = self._flow = Flow(self._broker, dataset, service.database)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(show, flow, self._console)
            await flow.run()
            tasks.cancel_scope.cancel()
        await self._count(service, flow)

    async def _count(self, service: Service, flow: Flow) -> None:
        dataset = flow.dataset
        checks = [
            Check("messages published", "both topics", len(dataset.messages), flow.published),
            Check(
                "messages consumed and committed",
                "both topics",
                len(dataset.messages),
                await self._committed(dataset),
            ),
        ]
        assert flow.live_from is not None
        async with service.database.reading() as session:
            checks += await store_checks(session, dataset)
            latencies = await measure(session, flow.live_from)
        checks += await to_thread.run_sync(parquet_checks, self._home.results, dataset)
        self._checks = checks
        self._latencies = latencies

    async def _committed(self, dataset: Dataset) -> int:
        # Offsets are committed after the asset events are durable, so wait for the last commit.
        deadline = time.monotonic() + _COMMIT_WAIT_S
        while True:
            total = 0
            for topic, count in self._partitions.items():
                total += await to_thread.run_sync(
                    committed_offsets, self._broker.bootstrap_servers, topic, count
                )
            if total >= len(dataset.messages) or time.monotonic() > deadline:
                return total
            await anyio.sleep(0.2)

    def finish(self) -> int:
        """Print the report and return the exit code. Call it after the messages were counted."""
        assert self._flow is not None
        assert self._latencies is not None
        console = self._console
        console.print()
        print_answer(console, self._home.results)
        print_checks(console, self._checks)
        print_latencies(console, self._latencies)
        messages, seconds = len(self._flow.dataset.messages), self._flow.bulk_seconds
        if seconds is not None:
            _say(
                console,
                f"The backlog was durable as asset events {seconds:.1f} s after the first message"
                f" was published: {messages / seconds:,.0f} messages/s, all parts on this machine.",
            )
        _say(console, f"data:    {self._flow.dataset.summary}")
        _say(console, f"results: {self._home.results} (Parquet, answer.json)")
        config = self._home.path / "triggerer.toml"
        _say(console, f"runs:    {_own_command()} runs list --config {config}")
        wrong = [check for check in self._checks if not check.holds]
        if wrong:
            _say(console, f"[bold red]{len(wrong)} of {len(self._checks)} counts are wrong.[/]")
            return 1
        _say(console, f"[green]All {len(self._checks)} counts agree.[/]")
        return 0


def _own_command() -> str:
    """Return the shell command of this program. After `make demo`, `triggerer` is not on the PATH."""
    if which("triggerer"):
        return "triggerer"
    program = sys.argv[0]
    return f"{sys.executable} -m triggerer" if program.endswith("__main__.py") else program


def _say(console: Console, text: str) -> None:
    """Print a sentence without line breaks, so that a path in it can be copied."""
    console.print(text, soft_wrap=True)
