"""`triggerer simulate`: runs the filters and expressions of a DAGs folder on virtual time, with injected faults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_note
from triggerer.cli.terminal.session import folder_of, settings_for
from triggerer.errors import ConfigurationError

if TYPE_CHECKING:
    from triggerer.dag_processing import ParsedFolder

Seeds = Annotated[
    int,
    typer.Option(
        "--seeds",
        min=1,
        help="Number of seeds to try. A seed fixes one course of events and faults.",
    ),
]
Start = Annotated[int, typer.Option("--start", min=0, help="The first seed.")]
Steps = Annotated[
    int,
    typer.Option(
        "--steps",
        min=1,
        help="Number of steps with faults. After them, the seed runs to its end without faults.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", min=1, help="Number of processes.", show_default="one for each CPU"),
]
Replay = Annotated[
    int | None, typer.Option("--replay", help="Run this one seed and print its trace.")
]
Messages = Annotated[
    Path | None,
    typer.Option(
        "--messages", metavar="FILE", help="File with sample message values, one per line."
    ),
]


def simulate(
    dags_folder: options.DagsFolder = None,
    seeds: Seeds = 100,
    start: Start = 0,
    steps: Steps = 1000,
    jobs: Jobs = None,
    replay: Replay = None,
    messages: Messages = None,
    config: options.Config = None,
) -> None:
    """Test your watchers' filters and your DAGs' expressions with a simulated broker and store that fail."""
    import anyio

    from triggerer.dag_processing import parse_once
    from triggerer.testing.simulation import command
    from triggerer.testing.simulation.worlds.folder import select

    settings = settings_for(config, dags_folder=dags_folder)
    folder = folder_of(settings)
    samples: tuple[bytes, ...] = ()
    if messages is not None:
        if not messages.is_file():
            raise ConfigurationError(f"there is no file {messages}")
        samples = tuple(messages.read_bytes().splitlines())

    async def parse() -> ParsedFolder:
        return await parse_once(
            folder, allowed_modules=settings.core.allowed_trigger_modules, pools=settings.pools
        )

    parsed = anyio.run(parse)
    for error in parsed.errors:
        print_note(f"error: {error}")
    if parsed.errors:
        raise typer.Exit(1)
    selection = select(
        parsed.folder,
        folder,
        allowed_modules=tuple(settings.core.allowed_trigger_modules),
        samples=samples,
    )
    for reason in selection.left_out:
        print_note(f"left out: {reason}")
    if replay is not None:
        raise typer.Exit(command.replay(replay, steps=steps, prepare=selection.workload))
    raise typer.Exit(
        command.search(
            start,
            seeds,
            steps=steps,
            jobs=jobs or os.cpu_count() or 1,
            prepare=selection.workload,
        )
    )
