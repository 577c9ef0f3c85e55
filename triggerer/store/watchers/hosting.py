"""Reads the triggers of an instance's streams, and writes the states of its watchers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, bindparam, case, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from triggerer.domain.dag_files.new_streams import may_open
from triggerer.domain.events import Fence, WatcherRef
from triggerer.domain.watchers.lane_positions import LanePosition, ReplayRequest
from triggerer.domain.watchers.parked import StoredBacklog
from triggerer.store.database.transactions import database_now
from triggerer.store.schema.models import Asset, Stream, Trigger, Watcher
from triggerer.store.streams.leases import is_free
from triggerer.store.watchers import stored_backlog
from triggerer.store.watchers.locks import lock_watchers
from triggerer.store.watchers.positions import load_positions, load_replays


@dataclass(frozen=True, slots=True)
class TriggerRow:
    """A trigger and the watchers that it serves, at least one."""

    trigger_id: int
    classpath: str
    kwargs: dict[str, Any]
    stream_digest: str
    watchers: tuple[WatcherRef, ...]
    watcher_names: tuple[str, ...]
    """`<asset>/<watcher>` for each of `watchers`, in that order."""
    positions: tuple[LanePosition, ...] = ()
    """The positions of the trigger's watchers that are behind in a log."""
    stored_lanes: tuple[StoredBacklog, ...] = ()
    """Lanes with stored messages of the trigger's watchers.

    `load_triggers` returns only lanes with messages that an operator replays. An instance that starts to host the
    trigger needs all lanes with stored messages, so it replaces this field by the result of `load_stored_backlogs`.
    """
    replays: tuple[ReplayRequest, ...] = ()
    """Open replay requests, grouped by watcher. The requests for one watcher are sorted, earliest first."""
    guarantee: str | None = None
    """The lowest delivery guarantee that the DAG files accept. None: they accept any guarantee."""

    @property
    def display_name(self) -> str:
        """The names of the watchers that the trigger serves, for logs and errors."""
        return ", ".join(self.watcher_names)


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """A stream, the number of its triggers, and its host."""

    digest: str
    triggers: int
    owner: str | None
    """The instance that owns the stream. None: no instance owns the stream, or the lease has expired."""
    may_open: bool = True
    """False while the stream is new and not all DAG files have been read; see `triggerer.domain.dag_files.new_streams`.
    """


@dataclass(frozen=True, slots=True)
class WatcherState:
    """The state of a watcher. The instance that hosts the watcher reports it under the lease `fence`."""

    watcher_id: int
    trigger_id: int
    state: str
    error: str | None
    fence: Fence
    traceback: str | None = None


async def load_triggers(session: AsyncSession, stream_digests: Collection[str]) -> list[TriggerRow]:
    """Return the triggers of these streams, sorted by id, so that their order is the same at every start."""
    rows = await session.execute(
        select(Trigger, Watcher.id, Watcher.asset_id, Watcher.name, Asset.name)
        .join(Watcher, Watcher.trigger_id == Trigger.id)
        .join(Asset, Asset.id == Watcher.asset_id)
        .where(Trigger.stream_digest.in_(list(stream_digests)))
        .order_by(Trigger.id, Watcher.id)
    )
    # Read replay requests before positions. If a request is carried out between the two reads, the result contains the
    # request and also the new positions. In the other order, it could contain neither.
    replays = await load_replays(session, stream_digests)
    positions = await load_positions(session, stream_digests)
    stored_backlogs = await stored_backlog.load_stored_backlogs(
        session, stream_digests, are_replayed=True
    )
    served: dict[int, tuple[Trigger, list[WatcherRef], list[str]]] = {}
    for trigger, watcher_id, asset_id, watcher_name, asset_name in rows:
        _, watchers, names = served.setdefault(trigger.id, (trigger, [], []))
        watchers.append(WatcherRef(watcher_id, asset_id))
        names.append(f"{asset_name}/{watcher_name}")
    return [
        TriggerRow(
            trigger.id,
            trigger.classpath,
            trigger.kwargs,
            trigger.stream_digest,
            tuple(watchers),
            tuple(names),
            tuple(row for one in watchers for row in positions.get(one.watcher_id, ())),
            tuple(lane for one in watchers for lane in stored_backlogs.get(one.watcher_id, ())),
            tuple(request for one in watchers for request in replays.get(one.watcher_id, ())),
            trigger.guarantee,
        )
        for trigger, watchers, names in served.values()
    ]


async def load_stored_backlogs(
    session: AsyncSession, stream_digests: Iterable[str]
) -> dict[int, list[StoredBacklog]]:
    """Return, by watcher id, the lanes with stored messages for watchers of these streams."""
    return await stored_backlog.load_stored_backlogs(session, stream_digests)


async def stream_loads(session: AsyncSession) -> list[StreamLoad]:
    """Return all streams with the number of their triggers, sorted by digest."""
    now = await database_now(session)
    rows = await session.execute(
        select(
            Stream.digest,
            Stream.owner,
            Stream.expires_at,
            Stream.closed_until,
            func.count(Trigger.id),
        )
        .outerjoin(Trigger, Trigger.stream_digest == Stream.digest)
        .group_by(Stream.digest)
        .order_by(Stream.digest)
    )
    return [
        StreamLoad(
            digest,
            triggers,
            owner if expires_at is not None and expires_at > now else None,
            may_open(closed_until, now),
        )
        for digest, owner, expires_at, closed_until, triggers in rows
    ]


async def write_waiting_reasons(session: AsyncSession, reasons: Mapping[str, str]) -> None:
    """Store, for display, why watchers wait. A stream that has an owner, or is being claimed, is skipped.

    Args:
        reasons: By digest of a stream, the reason why the stream's watchers wait.
    """
    now = await database_now(session)
    # Lock the streams like a claim does. Otherwise an instance could claim a stream and store `running` for its
    # watchers, and this transaction would overwrite that state.
    free = (
        select(Stream.digest)
        .where(Stream.digest.in_(list(reasons)), is_free(now))
        .with_for_update(skip_locked=True)
    )
    by_reason: dict[str, list[str]] = {}
    for digest in await session.scalars(free):
        by_reason.setdefault(reasons[digest], []).append(digest)
    outdated = {
        reason: and_(
            Watcher.trigger_id.in_(select(Trigger.id).where(Trigger.stream_digest.in_(digests))),
            or_(Watcher.error.is_(None), Watcher.error != reason, Watcher.state != "waiting"),
        )
        for reason, digests in by_reason.items()
    }
    if not outdated:
        return
    await lock_watchers(session, or_(*outdated.values()))
    for reason, condition in outdated.items():
        await session.execute(
            update(Watcher)
            .where(condition)
            .values(state="waiting", error=reason, owner=None, updated_at=func.now())
        )


async def existing_watchers(session: AsyncSession, watcher_ids: Iterable[int]) -> set[int]:
    """Return the given ids of watchers that DAG files still declare. The watchers' triggers may have changed."""
    declared = select(Watcher.id).where(
        Watcher.id.in_(list(watcher_ids)), Watcher.trigger_id.is_not(None)
    )
    return set(await session.scalars(declared))


async def write_states(session: AsyncSession, states: Sequence[WatcherState]) -> None:
    """Store these states, for display. Skip a state if the stream's owner or the watcher's trigger has changed."""
    connection = await session.connection()
    owned = exists().where(
        Stream.digest == bindparam("b_digest"),
        Stream.owner == bindparam("b_owner"),
        Stream.epoch == bindparam("b_epoch"),
    )
    await connection.execute(
        update(Watcher)
        .where(
            Watcher.id == bindparam("b_watcher"),
            Watcher.trigger_id == bindparam("b_trigger"),
            owned,
        )
        .values(
            state=bindparam("b_state"),
            error=bindparam("b_error"),
            traceback=bindparam("b_traceback"),
            owner=bindparam("b_owner"),
            # `updated_at` is when the current state began, so an equal state does not change it.
            updated_at=case(
                (Watcher.state == bindparam("b_state"), Watcher.updated_at), else_=func.now()
            ),
        ),
        [
            {
                "b_watcher": state.watcher_id,
                "b_trigger": state.trigger_id,
                "b_state": state.state,
                "b_error": state.error,
                "b_traceback": state.traceback,
                "b_digest": state.fence.stream_digest,
                "b_owner": state.fence.owner,
                "b_epoch": state.fence.epoch,
            }
            # Write in the order of the watchers' ids. `mark_cleaned` locks watchers in this order too, so the two
            # transactions cannot deadlock.
            for state in sorted(states, key=lambda one: one.watcher_id)
        ],
    )


async def reset_to_waiting(
    session: AsyncSession, stream_digests: Iterable[str], owner: str
) -> None:
    """Store the state `waiting` for the watchers of these streams that `owner` hosted last."""
    triggers = select(Trigger.id).where(Trigger.stream_digest.in_(list(stream_digests)))
    hosted = and_(Watcher.trigger_id.in_(triggers), Watcher.owner == owner)
    await lock_watchers(session, hosted)
    await session.execute(
        update(Watcher).where(hosted).values(state="waiting", owner=None, updated_at=func.now())
    )
