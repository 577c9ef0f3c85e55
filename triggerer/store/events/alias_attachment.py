"""Attaches new events to asset aliases, in the transaction that stores the events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from triggerer.store.database.script import Script
from triggerer.store.database.statement import ParameterRows, Statement, in_list, parameter_rows
from triggerer.store.events.bulk_insert import EventRow

_ATTACHED: Final = parameter_rows(event_id="bigint", alias_id="bigint")
_IDENTITIES: Final = Statement(
    "SELECT idempotency_key, ordinal, asset_id, id FROM asset_event WHERE id {IN_EVENTS}",
    IN_EVENTS=in_list("event_ids", "bigint"),
)
# "WHERE true" is needed: without it, SQLite would read the ON of ON CONFLICT as a join condition.
_RESOLVE: Final = Statement(
    """
INSERT INTO asset_alias_member (alias_id, asset_id)
SELECT DISTINCT a.alias_id, e.asset_id FROM {ATTACHED} AS a JOIN asset_event e ON e.id = a.event_id
WHERE true ON CONFLICT DO NOTHING
""",
    ATTACHED=_ATTACHED,
)
_WAITING: Final = Statement(
    """
SELECT DISTINCT s.dag_id FROM dag_schedule_alias s JOIN dag d ON d.dag_id = s.dag_id AND NOT d.is_stale
WHERE s.alias_id {IN_ALIASES}
""",
    IN_ALIASES=in_list("alias_ids", "bigint"),
)
# A DAG may wait for the event's asset and alias, or for several of its aliases. Because of DISTINCT and ON CONFLICT,
# the event is queued only once for the DAG.
_QUEUE: Final = Statement(
    """
INSERT INTO queued_asset_event (dag_id, asset_event_id, asset_id)
SELECT DISTINCT s.dag_id, e.id, e.asset_id
FROM {ATTACHED} AS a
JOIN asset_event e ON e.id = a.event_id
JOIN dag_schedule_alias s ON s.alias_id = a.alias_id
JOIN dag d ON d.dag_id = s.dag_id AND NOT d.is_stale
WHERE true ON CONFLICT DO NOTHING
""",
    ATTACHED=_ATTACHED,
)


def attach_events(
    rows: Sequence[EventRow], aliases: Sequence[Sequence[int]], new_ids: Sequence[int]
) -> Script[set[str]]:
    """Add each event's asset to the event's aliases, and queue the event for the DAGs that wait for these aliases.

    Args:
        rows: The rows that were passed to `insert_events`.
        aliases: For each row the ids of its aliases.
        new_ids: The ids that `insert_events` returned. Only new rows are attached: a duplicate event was attached when
            it was first stored.
    Returns:
        The ids of the DAGs for which events may have been queued.
    """
    if len(new_ids) == len(rows):
        attached = list(zip(new_ids, aliases, strict=True))
    else:
        found = yield _IDENTITIES(event_ids=list(new_ids))
        by_identity = {(key, ordinal, asset): pk for key, ordinal, asset, pk in found}
        identities = [(row.idempotency_key, row.ordinal, row.asset_id) for row in rows]
        attached = [
            (by_identity[identity], alias_ids)
            for identity, alias_ids in zip(identities, aliases, strict=True)
            if identity in by_identity
        ]
    pairs = ParameterRows([(pk, alias_id) for pk, ids in attached for alias_id in ids])
    if not pairs.rows:
        return set()
    yield _RESOLVE(rows=pairs)
    waiting = yield _WAITING(alias_ids=sorted({alias_id for _, alias_id in pairs.rows}))
    if waiting:
        yield _QUEUE(rows=pairs)
    return {str(dag_id) for (dag_id,) in waiting}
