"""`triggerer demo --broker NAME`: publishes a shop's orders, runs the whole service, and counts the asset events."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console

from triggerer.demo.brokers.source import NAME, TrialSource
from triggerer.demo.checks import Check, asset_checks
from triggerer.demo.home import choose_home, write_home
from triggerer.demo.report import print_checks
from triggerer.errors import ConfigurationError, TriggererError
from triggerer.observability.logging_setup import set_up_logging
from triggerer.processes.signals import unwrapped_interrupts
from triggerer.service import ALL_PARTS, Service, StopReason, run
from triggerer.store.database.wakeups.signals import Signal
from triggerer.store.listing.counts import count_asset

BROKERS: Final[Mapping[str, str]] = {
    "sqs": "SqsTrial",
    "pubsub": "PubSubTrial",
    "servicebus": "ServiceBusTrial",
}
ORDERS: Final = 1_000
_STALLED_S: Final = 60.0
_ACKNOWLEDGED_S: Final = 60.0
INTERRUPTED: Final = 130
DAG_ID: Final = "count_orders"

_CONFIG = """\
# Written by `triggerer demo --broker {broker}`.
[core]
home = "."
dags_folder = "dags"
shutdown_grace = 10

[executor]
workers = 1

[connections.{connection}]
{keys}
"""
_DAG = '''\
"""Counts the orders of the demo, batch by batch. The task has no argument `spark`, so Spark does not start."""

from triggerer import DAG, Asset, AssetWatcher, task
{imported}

orders = Asset("x-orders", name="orders", watchers=[AssetWatcher("demo", {trigger})])

with DAG("count_orders", schedule=orders, max_active_runs=1):

    @task
    def count(triggering_asset_events, log):
        events = triggering_asset_events[orders]
        total = sum(event.extra["value"]["amount"] for event in events)
        log.info("%d orders with a total amount of %d", len(events), total)

    count()
'''


def try_broker(broker: str, home: Path | None, *, endpoint: str | None) -> int:
    """Run the trial. Return the exit code: 1 if a count is wrong, 130 after Ctrl-C.

    Raises:
        TriggererError: The broker is unknown or not available, or a part of the trial failed.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    path = choose_home(home)
    source = _open(broker, endpoint)
    try:
        with unwrapped_interrupts():
            return _run(console, path, broker, source)
    except KeyboardInterrupt:
        # Ctrl-C came before the service listened for signals.
        return _interrupted(console, path)
    finally:
        source.close()


def _interrupted(console: Console, path: Path) -> int:
    console.print(f"Interrupted. The results so far are in {path}", soft_wrap=True)
    return INTERRUPTED


def _open(broker: str, endpoint: str | None) -> TrialSource:
    if broker not in BROKERS:
        known = ", ".join(("kafka", *BROKERS))
        raise ConfigurationError(f"the demo knows no broker {broker!r}", hint=f"known: {known}")
    try:
        module = importlib.import_module(f"triggerer.demo.brokers.{broker}")
    except ImportError as error:
        raise ConfigurationError(
            f"the demo of {broker} needs a package that is not installed: {error.name}",
            hint=f"pip install 'triggerer[{broker}]'",
        ) from error
    source: TrialSource = getattr(module, BROKERS[broker])(endpoint)
    return source


def _run(console: Console, path: Path, broker: str, source: TrialSource) -> int:
    connection, keys = source.connection
    text = _CONFIG.format(
        broker=broker,
        connection=connection,
        keys="\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()),
    )
    home = write_home(path, text, {})
    console.print(f"[bold]triggerer demo[/] in {path}", soft_wrap=True)
    console.print(f"broker: {source.where}", soft_wrap=True)
    trial = Trial(console, source, path / "dags")
    with home.log.open("w", encoding="utf-8") as log:
        set_up_logging(home.settings.core, log)
        try:
            stopped = run(home.settings, ALL_PARTS, trial.work)
        except (TriggererError, BaseExceptionGroup):
            console.print(f"The service's log is {home.log}", soft_wrap=True)
            raise
    return trial.finish() if stopped is StopReason.WORK_DONE else _interrupted(console, path)


class Trial:
    """One trial with a running service."""

    def __init__(self, console: Console, source: TrialSource, dags: Path) -> None:
        self._console = console
        self._source = source
        self._dags = dags
        self._checks: list[Check] = []
        self._seconds = 0.0

    async def work(self, service: Service) -> None:
        """Publish the orders, wait for their runs, and count the orders in the store and at the broker."""
        try:
            await self._publish_and_count(service)
        except anyio.get_cancelled_exc_class():
            self._console.print(
                "Stopping, after the work in flight has ended. Ctrl-C again stops at once.",
                soft_wrap=True,
            )
            raise

    async def _publish_and_count(self, service: Service) -> None:
        async with self._source as source:
            values = [json.dumps({"id": n, "amount": n % 97}).encode() for n in range(ORDERS)]
            # Publish before the watcher exists, because moto sometimes loses a message that is sent while the watcher's
            # stream deletes others.
            await source.publish(values)
            self._console.print(
                f"published {ORDERS} orders; waiting until successful runs have processed all of them"
            )
            trigger, imported = source.trigger
            (self._dags / "orders.py").write_text(
                _DAG.format(trigger=trigger, imported=imported), "utf-8"
            )
            began = time.monotonic()
            await self._until_done(service)
            self._seconds = time.monotonic() - began
            async with service.database.reading() as session:
                checks = await asset_checks(session, "orders", dag_id=DAG_ID, expected=ORDERS)
            left = await _count_left(source)
            if left is not None:
                checks.append(Check("messages left at the broker", NAME, 0, left))
            self._checks = [Check("messages published", NAME, ORDERS, len(values)), *checks]

    async def _until_done(self, service: Service) -> None:
        """Return when each order is in a successful run.

        Raises:
            TriggererError: Nothing has moved for a minute.
        """
        with service.database.wakeups.subscribe(Signal.EVENTS_QUEUED, Signal.RUNS_ENDED) as commits:
            while True:
                async with service.database.reading() as session:
                    counts = await count_asset(session, asset="orders", dag_id=DAG_ID)
                if counts.in_successful_runs >= ORDERS:
                    return
                if not await commits.wait(timedelta(seconds=_STALLED_S)):
                    raise TriggererError(
                        f"nothing has moved for {_STALLED_S:.0f} s in the demo: {counts.events} of {ORDERS}"
                        " messages are asset events",
                        hint="see service.log in the demo's folder",
                    )

    def finish(self) -> int:
        """Print the counts and return the exit code. Call it after the service has stopped."""
        print_checks(self._console, self._checks)
        self._console.print(
            f"Successful runs processed {ORDERS} messages in {self._seconds:.1f} s, which includes the first read of"
            " the DAG file.",
            soft_wrap=True,
        )
        wrong = [check for check in self._checks if not check.holds]
        if wrong:
            self._console.print(
                f"[bold red]{len(wrong)} of {len(self._checks)} counts are wrong.[/]"
            )
            return 1
        self._console.print(f"[green]All {len(self._checks)} counts agree.[/]")
        return 0


async def _count_left(source: TrialSource) -> int | None:
    """Wait up to a minute until the broker has no message left. Return the number that is left, or None if unknown.

    The wait is for the last acknowledgements, which the service sends after the events are durable.
    """
    left = await source.count_left()
    with anyio.move_on_after(_ACKNOWLEDGED_S):
        while left:
            await anyio.sleep(0.2)
            left = await source.count_left()
    return left
