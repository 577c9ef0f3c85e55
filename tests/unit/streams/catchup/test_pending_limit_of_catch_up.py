"""All watchers that catch up share one bound for events that the store has not confirmed yet."""

from __future__ import annotations

import pytest

from tests.unit.streams.scene import Scene, always, payloads_of
from triggerer.testing import StreamHarness

BOUND = 4


@pytest.fixture(autouse=True)
def _small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triggerer.streams.context._MOST_PENDING_BEHIND", BOUND)


@pytest.mark.rule("18: catch-up gives way to live watchers")
async def test_live_delivery_waits_for_a_bounded_number_of_rows_however_many_catch_up(
    any_scene: Scene,
) -> None:
    names = ("sick", "ill", "unwell")
    any_scene.fails.update(dict.fromkeys(names, always))
    async with StreamHarness(catch_up=True, persistence="manual") as streams:
        await streams.add(any_scene.watcher("well"))
        behind = [await streams.add(any_scene.watcher(name)) for name in names]
        any_scene.publish(*range(10))
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        any_scene.fails.clear()
        for one in behind:
            await streams.restart(one)
        await streams.quiesce()
        while waiting := sum(len(one.unpersisted) for one in behind):
            assert waiting <= BOUND
            await streams.persist(1)
            await streams.quiesce()
        assert [payloads_of(one) for one in behind] == [list(range(10))] * 3


@pytest.mark.rule("7: during catch-up the ack timeout begins when the filter gets the message")
async def test_while_the_store_is_away_no_filter_that_catches_up_is_late(any_scene: Scene) -> None:
    """Otherwise, after an hour without a database, valid messages would be parked."""
    any_scene.fails["sick"] = always
    async with StreamHarness(catch_up=True, persistence="manual", ack_timeout=10) as streams:
        await streams.add(any_scene.watcher("well"))
        sick = await streams.add(any_scene.watcher("sick"))
        any_scene.publish(*range(10))
        await streams.quiesce()
        await streams.persist()
        await streams.quiesce()
        any_scene.fails.clear()
        await streams.restart(sick)
        await streams.sleep(1_000)
        assert (sick.error, len(sick.unpersisted)) == (None, BOUND)
        while sick.unpersisted:
            await streams.persist()
            await streams.quiesce()
        assert (sick.error, sick.set_aside, sick.behind) == (None, [], {})
        assert payloads_of(sick) == list(range(10))
