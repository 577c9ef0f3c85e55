"""The differences between hosted and stored triggers, where several watchers share a trigger."""

from __future__ import annotations

from typing import cast

from triggerer.domain.events import Fence, WatcherRef
from triggerer.hosting.roster import Difference, HostedTrigger, Roster
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.streams import Member


def row(trigger_id: int, *watchers: int, stream: str = "stream") -> TriggerRow:
    refs = tuple(WatcherRef(one, one) for one in watchers)
    return TriggerRow(trigger_id, "Acking", {}, stream, refs, tuple(map(str, watchers)))


def hosted(one: TriggerRow) -> HostedTrigger:
    # The roster needs members only to tell them apart, so any object will do.
    return HostedTrigger(one, Fence(one.stream_digest, "me", 1), cast("Member", object()))


def difference(before: list[TriggerRow], after: list[TriggerRow]) -> Difference:
    roster = Roster()
    for one in before:
        roster.add(hosted(one))
    return roster.difference(after)


def ids(found: Difference) -> tuple[list[int], list[int], list[int]]:
    """Return the ids of the triggers that are gone, changed and new."""
    return (
        [hosted.row.trigger_id for hosted in found.gone],
        [one.trigger_id for _, one in found.changed],
        [one.trigger_id for one in found.new],
    )


def test_a_trigger_goes_on_where_a_watcher_was_deleted_or_is_new_to_the_stream() -> None:
    assert ids(difference([row(1, 1, 2), row(2, 3)], [row(1, 1), row(2, 3)])) == ([], [1], [])
    assert ids(difference([row(1, 1), row(2, 3)], [row(1, 1, 2), row(2, 3)])) == ([], [1], [])


def test_triggers_between_which_a_watcher_moves_are_made_anew() -> None:
    assert ids(difference([row(1, 1, 2)], [row(1, 1), row(2, 2)])) == ([1], [], [1, 2])
    assert ids(difference([row(1, 1), row(2, 2)], [row(1, 1, 2)])) == ([1, 2], [], [1])
    both = difference([row(1, 1, 2), row(2, 3), row(3, 4)], [row(1, 1), row(2, 2, 3), row(3, 4)])
    assert ids(both) == ([1, 2], [], [1, 2])


def test_a_trigger_whose_former_stream_cannot_change_yet_leaves_it_later() -> None:
    """An earlier version forgot the trigger's old stream when the trigger joined its new stream.

    So the trigger was never removed from the old stream.
    """
    roster = Roster()
    former, sibling = hosted(row(1, 1, stream="a")), hosted(row(2, 2, stream="b"))
    roster.add(former)
    roster.add(sibling)
    # The trigger moves to `b`. The class of a new trigger of `a` is still being loaded.
    rows = [row(3, 3, stream="a"), row(1, 1, stream="b"), row(2, 2, stream="b")]
    ready = roster.difference(rows).on_streams_of(lambda one: one.trigger_id != 3)
    assert ids(ready) == ([], [], [1])
    moved = hosted(rows[1])
    roster.add(moved)
    assert roster.find(rows[1]) is moved
    later = roster.difference(rows)
    assert later.gone == [former]
    assert [one.trigger_id for one in later.new] == [3]
    roster.drop(former)
    assert roster.find(rows[1]) is moved
    assert roster.on_stream("a") == []
    assert ids(roster.difference(rows)) == ([], [], [3])
