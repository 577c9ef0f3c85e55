"""`triggerer notify test`: sends one message to each target of notifications, and reports the outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import print_json
from triggerer.cli.terminal.session import settings_for
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.errors import ConfigurationError

if TYPE_CHECKING:
    from triggerer.config import Settings
    from triggerer.operations.notifying import TestedTarget

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Urls = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[URL]...",
        show_default=False,
        help="Targets to test instead of the setting `notify.urls`. Each may be env:NAME or file:PATH.",
    ),
]


# Without a callback, Typer replaces a group by its only command. Then `triggerer notify` alone would send the test.
@app.callback()
def _group() -> None:
    pass


@app.command("test")
def send_test(urls: Urls = None, json: options.Json = False, config: options.Config = None) -> None:
    """Send one message to each target; exit code 1 if a target does not accept it."""
    import anyio

    settings = _with_targets(settings_for(config), urls)
    tested = anyio.run(_test, settings)
    if json:
        print_json(tested)
    else:
        columns = ("target", "result", Column("error", Kind.TEXT))
        rows = [(one.target, "failed" if one.error else "sent", one.error) for one in tested]
        print_table(columns, rows, empty="")
    if any(one.error is not None for one in tested):
        raise typer.Exit(1)


def _with_targets(settings: Settings, urls: list[str] | None) -> Settings:
    from dataclasses import replace

    from triggerer.observability.target_names import remember_targets

    if urls:
        remember_targets(urls)
        settings = replace(settings, notify=replace(settings.notify, urls=tuple(urls)))
    if not settings.notify.urls:
        raise ConfigurationError(
            "there are no targets: [notify] urls is empty",
            hint="name some, as in: triggerer notify test json://localhost:8000",
        )
    return settings


async def _test(settings: Settings) -> list[TestedTarget]:
    from triggerer.notifications.sending import check_targets
    from triggerer.operations.notifying import test_targets, writer_for

    urls = settings.resolve_targets()
    await check_targets(urls)
    return await test_targets(urls, writer_for(settings))
