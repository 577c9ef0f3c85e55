"""The differences between hosted and stored triggers, where several watchers share a trigger."""

from __future__ import annotations

from typing import cast

from triggerer.domain.events import Fence, WatcherRef
from triggerer.hosting.roster import Difference, HostedTrigger, Roster
from triggerer.store.watchers.hosting import TriggerRow
from triggerer.streams import Member

FENCE = Fence("stream", "me", 1)


def row(trigger_id: int, *watchers: int) -> TriggerRow:
    refs = tuple(WatcherRef(one, one) for one in watchers)
    return TriggerRow(trigger_id, "Acking", {}, "stream", refs, tuple(map(str, watchers)))


def difference(before: list[TriggerRow], after: list[TriggerRow]) -> Difference:
    roster = Roster()
    for one in before:
        # The roster needs members only to tell them apart, so any object will do.
        roster.add(HostedTrigger(one, FENCE, cast("Member", object())))
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
