"""`triggerer demo`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from triggerer.errors import ConfigurationError


def demo(
    everything: Annotated[
        bool, typer.Option("--all", help="The whole year, not two months: some minutes.")
    ] = False,
    home: Annotated[
        Path | None,
        typer.Option("--home", metavar="DIR", help="A new folder; default: .triggerer-demo/<time>"),
    ] = None,
    broker: Annotated[
        str,
        typer.Option(
            "--broker", metavar="NAME", help="kafka (embedded), sqs, pubsub or servicebus."
        ),
    ] = "kafka",
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="WHERE",
            help="The broker, other than kafka: a URL (sqs), host:port (pubsub), an emulator's host or a connection"
            " string (servicebus). Default: embedded, where that is installed.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Refused: the demo writes its own."),
    ] = None,
) -> None:
    """Run the whole service on real data: flights and weather, from messages to an answer.

    With another broker than kafka: a thousand orders, counted.
    """
    if config is not None:
        raise ConfigurationError(
            "the demo brings its own configuration and takes none",
            hint="triggerer standalone --config FILE runs your own DAGs",
        )
    if broker != "kafka":
        from triggerer.demo.brokers.trial import try_broker

        sys.exit(try_broker(broker, home, endpoint=endpoint))
    if endpoint is not None:
        raise ConfigurationError("the demo on kafka brings its own broker and takes no --endpoint")
    from triggerer.demo.prerequisites import check_prerequisites

    check_prerequisites()
    from triggerer.demo.main import run_demo

    sys.exit(run_demo(home, whole_year=everything))
