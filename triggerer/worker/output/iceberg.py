"""`output.iceberg`: a try writes a snapshot on a branch of its own, and the commit cherry-picks the snapshot.

The snapshot has the output's name as Iceberg's `wap.id`. In the commit, Iceberg refuses a second snapshot with this
`wap.id`, so two tries that run at the same time cannot both succeed.

Branches need Iceberg's SQL extensions. Without the extensions, a try appends the rows directly, after two checks:

1. The table has no snapshot with the output's name. Two tries that run at the same time could both pass this check.
2. This attempt is the run's current one. If both tries have passed check 1, only check 2 prevents a second append.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from triggerer.errors import OutputRefused
from triggerer.worker.output.marks import is_stale
from triggerer.worker.output.spark_errors import has_condition, mentions
from triggerer.worker.output.writing import Outcome, Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("triggerer.run")

_BRANCH: Final = "triggerer_draft_"


class IcebergTable:
    """An Iceberg table.

    Args:
        table: The table's name as Spark resolves it, with or without a catalog.
    """

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        self.name = table

    def writer_of(self, name: str) -> str | None:
        """Return the mark of the call that wrote this output. None: the table's history does not have the output."""
        named = f"own.summary['wap.id'] = '{name}' OR own.summary['published-wap-id'] = '{name}'"
        snapshots = f"{self.name}.snapshots"
        # First look for a snapshot with the output's name: usually there is none. The second query also reads the
        # table's history, and takes three times as long as the first query.
        if not self._spark.sql(f"SELECT 1 FROM {snapshots} own WHERE {named}").take(1):
            return None
        rows = self._spark.sql(
            f"""
            SELECT coalesce(picked.summary['triggerer.mark'], own.summary['triggerer.mark'], '')
            FROM {snapshots} own
            JOIN {self.name}.history h ON h.snapshot_id = own.snapshot_id AND h.is_current_ancestor
            LEFT JOIN {snapshots} picked
              ON picked.snapshot_id = CAST(own.summary['source-snapshot-id'] AS BIGINT)
            WHERE {named}
            """
        ).take(1)
        return str(rows[0][0]) if rows else None

    def create_branch(self, branch: str) -> bool:
        """Create a branch at the table's present state. Return False if the session lacks Iceberg's SQL extensions."""
        try:
            self._spark.sql(f"ALTER TABLE {self.name} CREATE BRANCH `{branch}`")
        except Exception as error:
            if has_condition(error, "PARSE_SYNTAX_ERROR"):
                return False
            raise
        return True

    def drop_branch(self, branch: str) -> None:
        """Drop a branch, if it exists."""
        self._spark.sql(f"ALTER TABLE {self.name} DROP BRANCH IF EXISTS `{branch}`")

    def drafts(self) -> dict[str, int]:
        """Return the branches of all drafts, with the id of each branch's newest snapshot."""
        rows = self._spark.sql(f"SELECT name, snapshot_id FROM {self.name}.refs").collect()
        return {row[0]: row[1] for row in rows if row[0].startswith(_BRANCH)}

    def append(self, df: DataFrame, name: str, mark: str, *, branch: str | None = None) -> None:
        """Add the rows to the table, or to one of its branches."""
        target = self.name if branch is None else f"{self.name}.`branch_{branch}`"
        (
            df.writeTo(target)
            .option("snapshot-property.wap.id", name)
            .option("snapshot-property.triggerer.mark", mark)
            .append()
        )

    def pick(self, snapshot_id: int) -> bool:
        """Add a branch's snapshot to the table. Return False if the table already has the output of the snapshot."""
        catalog, name = self._in_procedures()
        call = f"CALL {catalog}.system.cherrypick_snapshot('{name}', {snapshot_id})"
        try:
            self._spark.sql(call).collect()
        except Exception as error:
            if mentions(error, "DuplicateWAPCommitException"):
                return False
            raise
        return True

    def _in_procedures(self) -> tuple[str, str]:
        """Return the catalog, and the table's name for Iceberg's procedures.

        Add the catalog to a name with a namespace. Without the catalog, Iceberg would log 90 lines.
        """
        first, _, rest = self.name.partition(".")
        if rest and self._spark.conf.get(f"spark.sql.catalog.{first.strip('`')}", None) is not None:
            return first, self.name
        catalog = f"`{self._spark.catalog.currentCatalog()}`"
        return catalog, f"{catalog}.{self.name}" if rest else self.name


def write_iceberg(df: DataFrame, table: IcebergTable, writing: Writing) -> Outcome:
    """Append the rows in one commit, unless an earlier try has done so.

    Raises:
        OutputRefused: This attempt is no longer the run's current one.
    """
    writing.require_current()
    found = table.writer_of(writing.name)
    if found is not None:
        _drop_old_drafts(table, writing, table.drafts(), own="")
    elif table.create_branch(branch := f"{_branches_of(writing.name)}{writing.mark}"):
        found = _append_and_pick(df, table, writing, branch)
    else:
        logger.info("without Iceberg's SQL extensions, %s is written without a branch", table.name)
        writing.require_current()
        table.append(df, writing.name, writing.mark)
        found = writing.mark
    return writing.outcome(found, table.name)


def _append_and_pick(df: DataFrame, table: IcebergTable, writing: Writing, branch: str) -> str:
    try:
        table.append(df, writing.name, writing.mark, branch=branch)
        # Directly before the commit, ask the service whether another attempt has replaced this one.
        writing.require_current()
        drafts = table.drafts()
        # If the branch is gone, a later try has dropped it.
        is_mine = branch in drafts and table.pick(drafts[branch])
        found = writing.mark if is_mine else table.writer_of(writing.name)
        if found is None:
            raise OutputRefused(
                f"another attempt has dropped the draft of the rows for {table.name}"
            )
        _drop_old_drafts(table, writing, drafts, own=branch)
    finally:
        table.drop_branch(branch)
    return found


def _drop_old_drafts(
    table: IcebergTable, writing: Writing, drafts: Iterable[str], *, own: str
) -> None:
    """Drop the branches of this output's earlier tries, and branches of other outputs that are a week old."""
    for branch in drafts:
        of_this = branch.startswith(_branches_of(writing.name))
        mark = branch.removeprefix(_BRANCH).split("__")[-1]
        if branch != own and (of_this or is_stale(mark)):
            table.drop_branch(branch)


def _branches_of(name: str) -> str:
    return f"{_BRANCH}{name.replace('-', '_')}__"
