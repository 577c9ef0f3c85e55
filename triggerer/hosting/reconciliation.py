"""Reconciliation: starts, changes and stops triggers, until this host runs the triggers that the store shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from triggerer.domain.events import EventSource, Fence
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.hosting.pending_writes import Unwritten
from triggerer.hosting.preparation import Preparation
from triggerer.hosting.queries import HostingQueries
from triggerer.hosting.roster import Difference, HostedTrigger, Roster, source_of
from triggerer.hosting.watcher_states import StateWriter
from triggerer.store.database.transactions import Database
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.streams import Manager, TriggerSpec


class Reconciliation:
    """Adds, changes and removes hosted triggers, so that they match the rows of the owned streams in the store.

    Args:
        capacity: The most triggers that the instance hosts.
    """

    def __init__(
        self,
        database: Database,
        queries: HostingQueries,
        *,
        manager: Manager,
        roster: Roster,
        states: StateWriter,
        preparation: Preparation,
        unwritten: Unwritten,
        capacity: int,
    ) -> None:
        self._database = database
        self._queries = queries
        self._manager = manager
        self._roster = roster
        self._states = states
        self._preparation = preparation
        self._unwritten = unwritten
        self._capacity = capacity

    async def run(self, owned: Mapping[str, Fence]) -> bool:
        """Host the triggers that the store shows on the streams of these leases.

        All triggers of a stream change in one tick of the event loop. Otherwise a trigger that is removed and added
        again, with new arguments, could miss a message that its siblings resolve in between. So a stream changes only
        once the classes of its new triggers are loaded, have failed to load, or take too long.

        Args:
            owned: The leases, by digest of the stream. If a lease is lost while this method waits, the caller removes
                the lease from `owned`.
        Returns:
            False if the caller must soon divide the streams and call this method again.
        """
        self._unwritten.refresh(one for one in owned if not self._roster.on_stream(one))
        difference = await self._read_difference(owned)
        if difference is not None and await self._preparation.prepare(difference.new):
            # The rows may have changed while classes were loaded.
            difference = await self._read_difference(owned)
        if difference is None:
            # Triggers were declared after the heartbeat, and the owned streams now have more triggers than this
            # instance may host. The next heartbeat decides which streams to give up.
            return False
        # If triggers were declared while classes were loaded, the next call prepares these triggers.
        is_complete = self._preparation.has(difference.new)
        self._apply(difference.on_streams_of(self._may_start), owned)
        return is_complete

    def _apply(self, difference: Difference, owned: Mapping[str, Fence]) -> None:
        """Change the hosted triggers. The removals come first."""
        owned_rows = [row for row in difference.new if row.stream_digest in owned]
        specs = [self._spec(row, owned[row.stream_digest]) for row in owned_rows]
        for hosted in difference.gone:
            # If a watcher outlives this trigger, a new trigger will serve the watcher. The new trigger must receive the
            # messages that this trigger has not resolved, so these messages must fail. `on_purpose` would ack them.
            self._roster.drop(hosted)
            outliving = difference.outliving(hosted)
            if 0 < len(outliving) < len(hosted.row.watchers):
                source, name = EventSource(outliving, hosted.fence), hosted.member.name
                self._manager.replace_source(hosted.member, source, name=name)
            self._manager.remove(hosted.member, on_purpose=not outliving)
        for hosted, row in difference.changed:
            hosted.row = row
            source = source_of(row, hosted.fence)
            self._manager.replace_source(hosted.member, source, name=row.display_name)
            self._states.mark_changed(hosted.member)
        for hosted, row in difference.replays_parked:
            self._manager.replay_parked(hosted.member, row.stored_lanes)
        members = self._manager.add(specs)
        for row, member in zip(owned_rows, members, strict=True):
            self._roster.add(HostedTrigger(row, owned[row.stream_digest], member))
            self._states.mark_changed(member)
        for row in difference.rewound:
            if (asked := self._roster.find(row)) is not None:
                self._manager.rewind(asked.member, row.replays)

    def _may_start(self, row: TriggerRow) -> bool:
        return row.stream_digest not in self._unwritten and self._preparation.is_ready(row)

    async def _read_difference(self, owned: Mapping[str, Fence]) -> Difference | None:
        """Compare the hosted triggers with the store. None: our streams have more triggers than we may host."""
        async with self._database.reading() as session:
            rows = await self._queries.load_triggers(session, owned)
            if len(rows) > self._capacity:
                return None
            difference = self._roster.difference(rows)
            watchers = [w.watcher_id for p in difference.gone for w in p.row.watchers]
            if watchers:
                alive = await self._queries.existing_watchers(session, watchers)
                difference = replace(difference, alive=alive)
            if difference.new:
                digests = {row.stream_digest for row in difference.new}
                stored = await self._queries.load_stored_backlogs(session, digests)
                difference = replace(difference, new=[_with(row, stored) for row in difference.new])
        return difference

    def _spec(self, row: TriggerRow, fence: Fence) -> TriggerSpec:
        prepared = self._preparation.take(row)
        return TriggerSpec(
            name=row.display_name,
            make=prepared,
            kwargs=row.kwargs,
            source=source_of(row, fence),
            positions=row.positions,
            stored_lanes=row.stored_lanes,
            stream_id=row.stream_digest,
            load=prepared.load,
        )


def _with(row: TriggerRow, stored: Mapping[int, Iterable[StoredBacklog]]) -> TriggerRow:
    """Return the row of a new trigger with all stored messages of its watchers."""
    lanes = [lane for one in row.watchers for lane in stored.get(one.watcher_id, ())]
    return replace(row, stored_lanes=tuple(lanes))
