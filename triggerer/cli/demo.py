"""`triggerer demo`: runs the whole service on real data, or tries a broker other than Kafka."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from triggerer.errors import ConfigurationError


def demo(
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Use the whole year of data instead of two months. Takes some minutes."
        ),
    ] = False,
    stay: Annotated[
        bool,
        typer.Option(
            "--stay", help="Keep the service and its page running after the report, until Ctrl-C."
        ),
    ] = False,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="DIR",
            help="A new folder for the demo's files. Default: .triggerer-demo/<time>.",
        ),
    ] = None,
    broker: Annotated[
        str,
        typer.Option(
            "--broker",
            metavar="NAME",
            help="kafka (embedded, the default), sqs, pubsub or servicebus.",
        ),
    ] = "kafka",
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="WHERE",
            help="Address of a broker other than kafka: a URL (sqs), host:port (pubsub), an emulator's host or a"
            " connection string (servicebus). Default: an embedded broker, if one is installed.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Refused: the demo writes its own configuration."
        ),
    ] = None,
) -> None:
    """Run the whole service on real data: flights and weather, from messages to a report.

    With a broker other than kafka, the demo publishes a thousand small messages, and counts the asset events and runs.
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

    sys.exit(run_demo(home, whole_year=everything, stays=stay))
