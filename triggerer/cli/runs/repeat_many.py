"""`runs retry` and `runs clear` for many runs: chooses the runs, asks the user, and prints the result."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from triggerer.cli.terminal import options
from triggerer.cli.terminal.output import counted, print_json, print_note, wrong_use
from triggerer.cli.terminal.session import read, this_user, with_database
from triggerer.cli.terminal.tables import Column, Kind, print_table
from triggerer.domain.text.one_line import one_line

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from triggerer.operations.many_runs import Chosen, RepeatedRun
    from triggerer.store.database.transactions import Database
    from triggerer.store.runs.ended import EndedRuns


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRuns:
    """The options that choose many runs, as the user gave them."""

    dag: str | None
    state: str | None
    from_: str | None
    to: str | None
    dry_run: bool
    yes: bool
    json: bool

    def are_chosen(self, run_id: str | None, last: bool) -> bool:
        """Return whether the user chose many runs.

        End with exit code 2 if the user also chose one run, or gave `--dry-run` without choosing many runs.
        """
        many = (self.dag, self.state, self.from_, self.to) != (None,) * 4
        if many and (run_id is not None or last):
            wrong_use(
                "--dag, --state, --from and --to choose many runs: leave RUN_ID and --last out"
            )
        if self.dry_run and not many:
            wrong_use("--dry-run goes with --dag, --state, --from or --to")
        return many


def repeat_many(
    config: Path | None,
    many: ManyRuns,
    dag_id: str | None,
    *,
    states: Sequence[str],
    clear: bool = False,
    tasks: Collection[str] = (),
) -> None:
    """Ask the user, queue the chosen runs again and print each of them.

    The user is not asked if `--yes` is given, or if stdin is no terminal. With `--dry-run`, the
    runs are only printed. The exit code is 1 if the user declines or a run is refused.

    Args:
        dag_id: The argument DAG_ID, which a user may give instead of `--dag`.
        states: The states that `--state` may name. Without `--state`, runs in all these states are chosen.
    """
    choice = _choice(many, dag_id, states)

    async def count(session: AsyncSession) -> Chosen:
        from triggerer.operations.many_runs import choose

        return await choose(session, choice)

    chosen = read(config, count)
    if chosen.runs and not (many.dry_run or many.yes or _may_queue(chosen)):
        print_note("triggerer: nothing was changed")
        raise typer.Exit(1)
    printer = _Printer(many)

    async def work(database: Database) -> None:
        from triggerer.operations.many_runs import plan_repeats, repeat_runs

        batches = (
            plan_repeats(database, chosen, tasks=tasks)
            if many.dry_run
            else repeat_runs(database, this_user(), chosen, clear=clear, tasks=tasks)
        )
        async for batch in batches:
            printer.show(batch)

    if chosen.runs:
        with_database(config, work)
    printer.end()
    if printer.refused:
        raise typer.Exit(1)


def _choice(many: ManyRuns, dag_id: str | None, states: Sequence[str]) -> EndedRuns:
    if None not in (dag_id, many.dag) and dag_id != many.dag:
        wrong_use(f"DAG_ID and --dag differ: {dag_id!r} and {many.dag!r}; give one of them")
    if many.state is not None and many.state not in states:
        wrong_use(f"--state is one of {', '.join(states)} here, not {many.state!r}")
    start = options.parse_instant(many.from_, "--from")
    end = options.parse_instant(many.to, "--to")
    if start is not None and end is not None and start > end:
        wrong_use("the range is empty: --from is after --to")
    from triggerer.domain.runs import RunState
    from triggerer.store.runs.ended import EndedRuns

    wanted = states if many.state is None else [many.state]
    return EndedRuns([RunState(state) for state in wanted], dag_id or many.dag, start, end)


def _may_queue(chosen: Chosen) -> bool:
    """Ask the user whether to go on. If stdin is no terminal, as in a script, return True without asking."""
    if not sys.stdin.isatty():
        return True
    runs = f"{counted(chosen.runs, 'run')} of {counted(chosen.dags, 'DAG')}"
    return typer.confirm(f"Queue {runs} again?", err=True)


class _Printer:
    """Prints each run as soon as it is queued again. Exceptions: a dry run and `--json` print everything at the end."""

    def __init__(self, many: ManyRuns) -> None:
        self._many = many
        self._unprinted: list[RepeatedRun] = []
        """The runs that `end` will print as a table or as a JSON object."""
        self.queued = 0
        self.refused = 0

    def show(self, batch: Sequence[RepeatedRun]) -> None:
        refused = sum(run.refused is not None for run in batch)
        self.refused += refused
        self.queued += len(batch) - refused
        if self._many.json or self._many.dry_run:
            self._unprinted += batch
            return
        for run in batch:
            if run.refused is None:
                typer.echo(f"{run.dag_id} {run.run_id}: queued again")
            else:
                print_note(
                    f"triggerer: {run.dag_id} {run.run_id} is left {run.former_state}: {run.refused}"
                )

    def end(self) -> None:
        if self._many.json:
            print_json(
                {
                    "dry_run": self._many.dry_run,
                    "queued": self.queued,
                    "refused": self.refused,
                    "runs": [asdict(run) for run in self._unprinted],
                }
            )
            return
        if self._many.dry_run and self._unprinted:
            self._print_plan()
        would = "would be queued" if self._many.dry_run else "queued"
        left = f"; refused: {counted(self.refused, 'run')}" if self.refused else ""
        typer.echo(f"{would} again: {counted(self.queued, 'run')}{left}")

    def _print_plan(self) -> None:
        columns: list[str | Column] = ["dag_id", "run_id", "state"]
        if self.refused:
            columns.append(Column("refused", Kind.TEXT))
        rows = (
            (run.dag_id, run.run_id, run.former_state, one_line(run.refused))[: len(columns)]
            for run in self._unprinted
        )
        print_table(columns, rows, empty="")
