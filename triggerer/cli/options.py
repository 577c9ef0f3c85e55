"""The options that several commands share (contract, §8). In help texts `[…]` is markup, and vanishes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="TOML file; default: $TRIGGERER_CONFIG, else ./triggerer.toml, if any.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")]
Dag = Annotated[str | None, typer.Option("--dag", metavar="DAG_ID", help="Only of this DAG.")]
Asset = Annotated[
    str | None, typer.Option("--asset", metavar="ASSET", help="Only of this asset (name or URI).")
]
State = Annotated[str | None, typer.Option("--state", help="Only in this state.")]
DagsFolder = Annotated[
    Path | None,
    typer.Option("--dags-folder", metavar="DIR", help="Wins over the configured folder."),
]
